// The selected joint action: completions, rewards, prompts, and the state.

/** The letters of a board, whose lines have equal length; else null. */
function boardOf(name, text) {
  if (name !== 'board') return null;
  const lines = String(text).split('\n').map((line) => [...line]);
  const width = lines[0].length;
  return width > 0 && lines.every((line) => line.length === width)
    ? lines : null;
}

const CELLS = {'#': 'wall', '.': 'floor', ' ': 'floor'};

/** Draws a board as a grid and marks cells that differ from `other`. */
function drawBoard(title, lines, other) {
  const cells = lines.flatMap((line, y) => line.map((letter, x) => {
    const kind = CELLS[letter] || 'thing';
    const isNew = other && other[y]?.[x] !== letter;
    return h('span', {class: isNew ? `${kind} changed` : kind},
        kind === 'floor' ? '·' : letter);
  }));
  const text = lines.map((line) => line.join('')).join('; ');
  const grid = h('div', {class: 'board', role: 'img',
                         'aria-label': `${title}: ${text}`}, cells);
  grid.style.setProperty('--columns', lines[0].length);
  return h('figure', {class: 'state'}, h('figcaption', {}, title), grid);
}

/** The shown state before and after a step. */
function drawStates(before, after) {
  const boards = [];
  const texts = [];
  for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) {
    const [old, fresh] = [before, after].map(
        (state) => boardOf(name, state[name] ?? ''));
    const isEqual = before[name] === after[name];
    if (old && fresh) {
      boards.push(...(isEqual ? [drawBoard('Before and after', fresh)]
        : [drawBoard('Before', old), drawBoard('After', fresh, old)]));
    } else if (isEqual) {
      texts.push(entry(`${name} (unchanged)`, after[name], false));
    } else {
      texts.push(
          name in before && entry(`${name}, before`, before[name], false),
          name in after && entry(`${name}, after`, after[name], true));
    }
  }
  return h('section', {}, h('h4', {}, 'State'),
    h('div', {class: 'boards'}, boards), texts);
}

/** A text that opens and closes below its name. */
const entry = (name, text, isOpen) => h('details', {open: isOpen},
  h('summary', {}, name), h('pre', {}, String(text)));

/** A list of [name, value]. */
const facts = (pairs) => h('dl', {class: 'facts'}, pairs.filter(Boolean).map(
    ([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))));

function drawRewards(step) {
  const terms = Object.entries(step.terms);
  return h('section', {}, h('h4', {}, 'Rewards of the step'),
    facts([
      ['team', number(step.team_reward)],
      ...Object.entries(step.local_rewards).map(
          ([role, value]) => [`local, ${role}`, number(value)]),
    ]),
    terms.length > 0 && [
      h('h4', {}, 'Reward terms, unweighted'),
      facts(terms.map(([name, value]) => [words(name), number(value)]))]);
}

function drawCandidate(node, part, hasCredit, largest) {
  const {group, role, index, candidate} = part;
  return h('section', {class: 'candidate'},
    h('h4', {}, `Completion of ${role}`, node.groups.length > 1
      && ` (candidate ${index + 1} of ${group.candidates.length})`),
    facts([
      hasCredit && ['advantage', heat(candidate.advantage, largest)],
      hasCredit && ['return', number(candidate.return)],
      ['reward', number(candidate.reward)],
      ['outcome', h('span', {
        class: candidate.outcome === 'ok' ? '' : 'outcome'},
        words(candidate.outcome))],
      isNumber(group.value) && ['value of the prompt', number(group.value)],
      ['policy', group.policy],
    ]),
    h('pre', {class: 'completion'}, String(candidate.text)),
    h('details', {open: true, class: 'prompt'},
      h('summary', {}, `Prompt of ${role}`),
      group.messages.map(({role: speaker, content, ...functions}) => h(
        'div', {class: 'message'},
        h('div', {class: 'speaker'}, speaker),
        h('pre', {}, String(content)),
        Object.entries(functions).map(([name, value]) => h(
          'pre', {}, `${name}: ${JSON.stringify(value, null, 1)}`))))));
}

/** Everything recorded about one row of a tree. */
function drawDetail(tree, index, row, hasCredit) {
  const node = tree.nodes[index];
  const step = node.steps[row];
  const end = endOf(step);
  const largest = largestAdvantage(tree);
  return h('article', {class: 'detail'},
    h('h3', {}, rowName(node, row),
      node.chosen === row && h('span', {class: `tag ${chosenClass(node)}`},
          node.reason ? `chosen: ${node.reason}` : 'chosen'),
      end && h('span', {class: `end ${end.replaceAll(' ', '-')}`}, end)),
    h('div', {class: 'columns'},
      h('div', {}, joined(node, row).map((part) => drawCandidate(
          node, part, hasCredit, largest))),
      h('div', {}, drawRewards(step), drawStates(node.state, step.state))));
}

// Draws a tree: one button per joint action, lines to the nodes that follow.

/** The end of an episode after a step; '' if the episode continues. */
function endOf(step) {
  if (Object.values(step.outcomes).includes('infrastructure')) {
    return 'no result';
  }
  if (step.success) return 'solved';
  if (step.truncated) return 'truncated';
  return step.done ? 'ended' : '';
}

/** The candidates of a joint action, with their roles. */
const joined = (node, row) => node.groups.map((group, i) => ({
  group, role: group.role, index: node.joint_actions[row][i],
  candidate: group.candidates[node.joint_actions[row][i]]}));

/** The reward of a joint action: of its only role, or of the team. */
const rewardOf = (node, row) => node.groups.length > 1
  ? node.steps[row].team_reward : joined(node, row)[0].candidate.reward;

const rolesOf = (node) => node.groups.map((group) => group.role).join(' + ');

/** Whether a candidate of a node has an advantage. */
const hasSignal = (node) => node.groups.some((group) =>
  group.candidates.some((candidate) => candidate.advantage));

/** The classes of a choice, which has no color without a signal. */
const chosenClass = (node) => hasSignal(node) ? 'chosen' : 'chosen plain';

/** 'Turn 1, tool, candidate 3 of 8'. */
function rowName(node, row) {
  const noun = node.groups.length > 1 ? 'joint action' : 'candidate';
  return `Turn ${node.turn + 1}, ${rolesOf(node)}, `
    + `${noun} ${row + 1} of ${node.steps.length}`;
}

/** An advantage on a color; `largest` has the strongest color. */
function heat(advantage, largest) {
  const chip = h('span', {
    class: `chip ${advantage < 0 ? 'worse' : 'better'}`}, signed(advantage));
  chip.style.setProperty(
      '--heat', `${Math.round(100 * Math.abs(advantage) / largest)}%`);
  return chip;
}

const largestAdvantage = (tree) => Math.max(1e-6, ...tree.nodes.flatMap(
    (node) => node.groups.flatMap((group) => group.candidates.map(
        (candidate) => Math.abs(candidate.advantage)))));

/**
 * Draws a tree.
 *
 * @param {object} tree
 * @param {string} title
 * @param {boolean} hasCredit whether candidates have advantages
 * @param {function(number, number)} onselect receives a node and its row
 * @return {HTMLElement} with `choose(node, row)`, and `drawLines()` to be
 *     called when the element is in the page
 */
function drawTree(tree, title, hasCredit, onselect) {
  const {nodes} = tree;
  const largest = largestAdvantage(tree);
  const buttons = nodes.map((node, i) => node.steps.map((_, row) => h(
      'button', {
        type: 'button',
        class: node.chosen === row ? `row ${chosenClass(node)}` : 'row',
        onclick: () => choose(i, row),
      }, rowContent(node, row, hasCredit, largest))));

  /** A node and, to its right, the subtrees that follow it. */
  function subtree(i) {
    const children = [...nodes.keys()].filter((j) => j && nodes[j].parent === i)
      .sort((a, b) => nodes[a].joint_action - nodes[b].joint_action);
    return h('div', {class: 'subtree'},
      h('div', {class: 'node'},
        h('div', {class: 'node-head'}, nodeHead(nodes[i], hasCredit)),
        buttons[i]),
      h('div', {}, children.map(subtree)));
  }

  const canvas = h('div', {class: 'canvas'}, subtree(0));
  canvas.style.setProperty(
      '--roles', Math.max(...nodes.map((node) => node.groups.length)));

  let current = null;
  function choose(i, row) {
    current?.removeAttribute('aria-current');
    current = buttons[i][row];
    current.setAttribute('aria-current', 'true');
    onselect(i, row);
  }
  const drawn = h('figure', {class: 'tree', role: 'group', 'aria-label': title},
    h('figcaption', {}, h('strong', {}, title),
      hasCredit && h('span', {class: 'scale'}, 'Advantage ',
        [-1, 0, 1].map((part) => heat(part * largest, largest)))),
    h('div', {class: 'scroll'}, canvas));
  drawn.choose = choose;
  drawn.drawLines = () => drawLines(canvas, nodes, buttons);
  return drawn;
}

function nodeHead(node, hasCredit) {
  const noun = node.groups.length > 1 ? 'joint action' : 'candidate';
  const values = node.groups.filter((group) => isNumber(group.value)).map(
      (group) => `value ${number(group.value)}`);
  return [
    h('strong', {}, `Turn ${node.turn + 1}`), ` ${rolesOf(node)}`,
    node.steps.length > 1 && ` · ${count(node.steps.length, noun)}`,
    values.map((value) => ` · ${value}`),
    hasCredit && !hasSignal(node) && ' · all advantages zero'];
}

function rowContent(node, row, hasCredit, largest) {
  const parts = joined(node, row);
  const end = endOf(node.steps[row]);
  const failures = parts.filter(({candidate}) => candidate.outcome !== 'ok');
  return [
    h('span', {class: 'first'},
      node.steps.length > 1 && h('span', {class: 'index'}, String(row + 1)),
      hasCredit && parts.map(({candidate}) => heat(
          candidate.advantage, largest)),
      h('span', {class: 'reward'}, h('span', {class: 'unit'}, 'reward '),
        fixed(rewardOf(node, row))),
      end && h('span', {class: `end ${end.replaceAll(' ', '-')}`}, end)),
    h('span', {class: 'second'},
      failures.map(({candidate}) => h('span', {class: 'outcome'},
          words(candidate.outcome))),
      h('span', {class: 'snippet'},
        String(parts[0].candidate.text).trim().split('\n')[0]),
      node.chosen === row && h('span', {
        class: `tag ${chosenClass(node)}`, title: node.reason}, 'chosen'))];
}

/** Draws lines from joint actions to the nodes that follow them. */
function drawLines(canvas, nodes, buttons) {
  const middle = (button) => button.offsetTop + button.offsetHeight / 2;
  const paths = nodes.slice(1).map((node, i) => {
    const from = buttons[node.parent][node.joint_action];
    const to = buttons[i + 1][node.chosen ?? 0];
    const x = from.offsetLeft + from.offsetWidth;
    const bend = (x + to.offsetLeft) / 2;
    const parent = nodes[node.parent];
    const isChosen = parent.chosen === node.joint_action;
    return `<path class="${isChosen ? chosenClass(parent) : ''}" d="M${x},${middle(from)}
      C${bend},${middle(from)} ${bend},${middle(to)}
      ${to.offsetLeft},${middle(to)}"/>`;
  });
  // This markup contains numbers only.
  canvas.insertAdjacentHTML('beforeend',
    `<svg class="lines" aria-hidden="true">${paths.join('')}</svg>`);
}

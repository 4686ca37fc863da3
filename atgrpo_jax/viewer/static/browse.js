// Chooses the shown tree: a slider of records and a filtered list of tasks.

const PARTNER = {before: 'after', after: 'before'};

/** Whether candidates have advantages, as in a training step. */
const hasAdvantages = (source) => source.kind === 'step';

/** The name of a record, with the step as in the terminal: from 1. */
function sourceLabel(source) {
  if (source.kind === 'step') return `step ${Number(source.name) + 1}`;
  return source.name in PARTNER ? `${source.name} training`
    : `evaluation ${source.name}`;
}

/** The evaluation drawn beside another: before and after training. */
const partnerOf = (source, sources) => sources.findIndex(
    ({name}) => name === PARTNER[source.name]);

/** The address of a record in the page's URL. */
const address = (source) =>
  `tree/${source.kind}/${encodeURIComponent(source.name)}`;

const isSolved = (tree) => tree.summary.solved > 0;

function result({episodes, solved}) {
  if (!episodes) return 'no result';
  if (episodes > 1) return `${solved} of ${episodes} solved`;
  return solved ? 'solved' : 'not solved';
}

/** The first task that is solved in one of two records only, if any. */
function firstChanged(before, after) {
  const solved = new Map(after.map((tree) => [tree.task, isSolved(tree)]));
  return before.find((tree) => solved.has(tree.task)
    && solved.get(tree.task) !== isSolved(tree))?.task;
}

/** The first node and row of a tree whose completions hold a text, or null. */
function findText(tree, text) {
  for (const [i, node] of tree.nodes.entries()) {
    const row = node.steps.findIndex((_, row) => joined(node, row).some(
        ({candidate}) => candidate.text.toLowerCase().includes(text)));
    if (row >= 0) return [i, row];
  }
  return null;
}

const searched = () => byId('search').value.toLowerCase();

/** The trees that pass the filters of the page. */
function filtered(trees) {
  const solved = byId('solved').value;
  const outcome = byId('outcome').value;
  const text = searched();
  return trees.filter((tree) => (
    (!solved || isSolved(tree) === (solved === 'solved'))
    && (!outcome || tree.summary.outcomes.includes(outcome))
    && (!text || findText(tree, text))));
}

/** Sets the choices of a filter and keeps a choice that still exists. */
function setOptions(id, values) {
  const select = byId(id);
  const chosen = select.value;
  select.replaceChildren(select.options[0], ...[...new Set(values)].sort()
    .map((value) => h('option', {value}, words(value))));
  select.value = chosen;
  if (select.selectedIndex < 0) select.value = '';
}

async function main() {
  const sources = await unpack('sources');
  if (!sources.length) {
    fill('notice', 'No trees are recorded yet.');
    return;
  }
  const slider = byId('source');
  const unpacked = new Map();
  const load = (index) => {
    if (!unpacked.has(index)) unpacked.set(index, unpack(`trees-${index}`));
    return unpacked.get(index);
  };
  let index = 0;
  let trees = [];
  let task = null;

  const guarded = (action) => (...args) => action(...args).catch(fail);
  slider.max = sources.length - 1;
  slider.addEventListener('input', guarded(() => show(Number(slider.value))));
  for (const id of ['solved', 'outcome']) {
    byId(id).addEventListener('change', guarded(drawList));
  }
  byId('search').addEventListener('input', guarded(drawList));

  /** Shows a record, with the same task if the record has it. */
  async function show(to, wanted = task) {
    index = to;
    const source = sources[index];
    slider.value = index;
    slider.setAttribute('aria-valuetext', sourceLabel(source));
    byId('source-name').textContent = sourceLabel(source);
    const found = await load(index);
    if (source !== sources[index]) return;  // Another record was chosen.
    trees = found;
    task = wanted;
    setOptions('outcome', trees.flatMap((tree) => tree.summary.outcomes));
    await drawList();
  }

  async function drawList() {
    const source = sources[index];
    const listed = filtered(trees);
    const missing = source.num_trees - source.num_packed;
    fill('count', `${listed.length} of ${count(trees.length, 'task')}`
      + (missing ? `. Left out: the last ${missing} of ${source.num_trees}; `
        + `they are in ${source.file}.` : ''));
    fill('tasks', listed.map((tree) => h('li', {}, h('button', {
      type: 'button', 'data-task': tree.task,
      class: isSolved(tree) ? 'solved' : 'failed',
      onclick: guarded(() => drawTask(tree.task))},
      h('span', {class: 'task'}, tree.task),
      h('span', {class: 'result'}, result(tree.summary),
        hasAdvantages(source) && !tree.summary.signal
          && ', all advantages zero')))));
    const first = listed.find((tree) => tree.task === task) || listed[0];
    if (first) {
      await drawTask(first.task);
    } else {
      fill('drawn', h('p', {}, 'No task passes these filters.'));
      fill('detail');
    }
  }

  /** Draws the tree of a task, and its partner's. */
  async function drawTask(name) {
    task = name;
    const list = byId('tasks');
    for (const button of list.querySelectorAll('button')) {
      button.toggleAttribute('aria-current', button.dataset.task === name);
    }
    const {offsetTop, offsetHeight} = list.querySelector('[aria-current]');
    if (offsetTop < list.scrollTop || offsetTop + offsetHeight
        > list.scrollTop + list.clientHeight) {
      list.scrollTop = offsetTop;  // Does not scroll the page.
    }
    const source = sources[index];
    const position = trees.findIndex((tree) => tree.task === name);
    history.replaceState(null, '', `#${address(source)}/${position}`);
    const both = [index, partnerOf(source, sources)].filter((i) => i >= 0);
    const found = new Map(await Promise.all(
        both.map(async (i) => [i, await load(i)])));
    if (task !== name || source !== sources[index]) return;
    const hasCredit = hasAdvantages(source);
    const drawn = both.sort((a, b) => a - b).map((i) => {
      const tree = found.get(i).find((it) => it.task === name);
      if (!tree) {
        return h('p', {}, `${name} is not in this page for `
          + `${sourceLabel(sources[i])}.`);
      }
      const title = `${name}, ${sourceLabel(sources[i])}: `
        + result(tree.summary);
      const figure = drawTree(tree, title, hasCredit, (node, row) => {
        drawn.forEach((it) => it.classList.toggle('current', it === figure));
        fill('detail', drawDetail(tree, node, row, hasCredit));
      });
      figure.first = searched() && findText(tree, searched())
        || [0, tree.nodes[0].chosen ?? 0];
      return figure;
    });
    fill('drawn', drawn);
    drawn.forEach((it) => it.drawLines?.());
    const current = drawn[both.indexOf(index)];
    current.choose(...current.first);
  }

  byId('browser').hidden = false;
  byId('notice').hidden = true;
  // The URL may name a tree of this page.
  const [, name, position] = location.hash.match(/^#(.+)\/(\d+)$/) || [];
  const known = sources.findIndex((source) => address(source) === name);
  const before = sources.findIndex((source) => source.name === 'before');
  const after = sources.findIndex((source) => source.name === 'after');
  if (known >= 0) {
    await show(known, (await load(known))[position]?.task);
  } else if (before >= 0 && after >= 0) {
    await show(before, firstChanged(await load(before), await load(after)));
  } else {
    await show(Math.max(
        sources.findIndex((source) => source.kind === 'step'), 0));
  }
}

function fail(error) {
  fill('notice', `The trees cannot be drawn: ${error}`);
  byId('notice').hidden = false;
}

main().catch(fail).finally(() => {
  document.body.dataset.ready = 'true';
});

// Which tree is looked at: a slider of records, a filtered list of tasks.

const PARTNER = {before: 'after', after: 'before'};

function sourceLabel(source) {
  if (source.kind === 'replay') {
    const kind = hasCredit(source) ? 'step' : 'evaluation';
    return `replay of ${sourceLabel({kind, name: source.name})}`;
  }
  if (source.kind === 'step') return `step ${Number(source.name)}`;
  return source.name in PARTNER ? `${source.name} training`
    : `evaluation ${source.name}`;
}

/** Whether its candidates have advantages, as those of a training step. */
const hasCredit = ({kind, name}) =>
  kind === 'step' || (kind === 'replay' && /^\d+$/.test(name));

/** Which record is drawn beside one: before and after, or what was replayed. */
function partnerOf(source, sources) {
  if (source.kind === 'step') return -1;
  return sources.findIndex(({kind, name}) => (source.kind === 'replay'
    ? kind !== 'replay' && name === source.name
    : kind === 'evaluation' && name === PARTNER[source.name]));
}

/** Of a record, in the address of the page. */
const address = (source) =>
  `tree/${source.kind}/${encodeURIComponent(source.name)}`;

const isSolved = (tree) => tree.summary.solved > 0;

/** Whether all advantages are 0, of one role or of all. */
const lacksSignal = (tree, role) => Object.entries(tree.summary.roles).every(
    ([name, it]) => (role && role !== name) || !it.signal);

/** The trees that the filters let pass. */
function filtered(trees, {solved, role, outcome, noSignal}) {
  return trees.filter((tree) => {
    if (solved && isSolved(tree) !== (solved === 'solved')) return false;
    if (noSignal && !lacksSignal(tree, role)) return false;
    const roles = Object.entries(tree.summary.roles).filter(
        ([name]) => !role || name === role);
    if (!roles.length) return false;
    return !outcome || roles.some(([, it]) => it.outcomes.includes(outcome));
  });
}

/** 'solved', or how many episodes of several were. */
function verdict({episodes, solved}) {
  if (!episodes) return 'no result';
  if (episodes > 1) return `${solved} of ${episodes} solved`;
  return solved ? 'solved' : 'not solved';
}

/** Scrolls a list, and nothing around it, to one of its items. */
function reveal(list, item) {
  const top = item.offsetTop - list.scrollTop;
  if (top < 0 || top + item.offsetHeight > list.clientHeight) {
    list.scrollTop = item.offsetTop - list.clientHeight / 2;
  }
}

async function startBrowser({sources}) {
  document.getElementById('no-trees').hidden = sources.length > 0;
  document.getElementById('browser').hidden = !sources.length;
  if (!sources.length) return;

  const byId = (id) => document.getElementById(id);
  const slider = byId('source');
  const unpacked = new Map();
  const load = (index) => {
    if (!unpacked.has(index)) {
      unpacked.set(index, unpack(`trees-${index}`).catch((error) => {
        fill('notice', `The trees of ${sourceLabel(sources[index])} cannot be `
          + `read: ${error}`).hidden = false;
        return [];
      }));
    }
    return unpacked.get(index);
  };
  let index = 0;
  let trees = [];
  let task = null;

  slider.max = sources.length - 1;
  fill('sources', sources.map((_, i) => h('option', {value: i})));
  slider.addEventListener('input', () => show(Number(slider.value)));
  byId('previous').addEventListener('click', () => show(index - 1));
  byId('next').addEventListener('click', () => show(index + 1));
  for (const id of ['solved', 'role', 'outcome', 'no-signal']) {
    byId(id).addEventListener('change', drawList);
  }

  /** Unpacks a record; the task is kept if it is there. */
  async function show(to, wanted = task) {
    index = Math.max(0, Math.min(sources.length - 1, to));
    const source = sources[index];
    slider.value = index;
    slider.setAttribute('aria-valuetext', sourceLabel(source));
    byId('previous').disabled = index === 0;
    byId('next').disabled = index === sources.length - 1;
    byId('source-name').textContent = sourceLabel(source);
    const asked = index;
    const found = await load(index);
    if (asked !== index) return;  // Another one was asked for meanwhile.
    trees = found;
    task = wanted;
    setOptions('role', trees.flatMap((it) => Object.keys(it.summary.roles)));
    setOptions('outcome', trees.flatMap((it) => Object.values(
        it.summary.roles).flatMap((role) => role.outcomes)));
    byId('no-signal').disabled = !hasCredit(source);
    await drawList();
  }

  /** The choices of a filter; one that is still there stays chosen. */
  function setOptions(id, values) {
    const select = byId(id);
    const chosen = select.value;
    select.replaceChildren(select.options[0], ...[...new Set(values)].sort()
      .map((value) => h('option', {value}, words(value))));
    select.value = chosen;
    if (select.selectedIndex < 0) select.value = '';
  }

  async function drawList() {
    const source = sources[index];
    const noSignal = byId('no-signal');
    const listed = filtered(trees, {
      solved: byId('solved').value, role: byId('role').value,
      outcome: byId('outcome').value,
      noSignal: noSignal.checked && !noSignal.disabled});
    const missing = source.num_trees - source.num_packed;
    fill('count', `${listed.length} of ${count(trees.length, 'task')}`
      + (missing ? `. Not in this page: the last ${missing} of `
        + `${source.num_trees}; they are in ${source.file}.` : ''));
    fill('tasks', listed.map((tree) => h('li', {}, h('button', {
      type: 'button', 'data-task': tree.task,
      class: isSolved(tree) ? 'solved' : 'failed',
      onclick: () => drawTask(tree.task)},
      h('span', {class: 'task'}, tree.task),
      h('span', {class: 'verdict'}, verdict(tree.summary),
        hasCredit(source) && lacksSignal(tree) && ', no signal')))));
    const first = listed.find((tree) => tree.task === task) || listed[0];
    if (first) {
      await drawTask(first.task);
    } else {
      fill('drawn', h('p', {}, 'No task passes these filters.'));
      fill('detail');
    }
  }

  /** Draws a tree, and its partner if it has one. */
  async function drawTask(name) {
    task = name;
    for (const button of byId('tasks').querySelectorAll('button')) {
      if (button.dataset.task === name) {
        button.setAttribute('aria-current', 'true');
        reveal(byId('tasks'), button);
      } else {
        button.removeAttribute('aria-current');
      }
    }
    const source = sources[index];
    const place = trees.findIndex((tree) => tree.task === name);
    history.replaceState(null, '', `#${address(source)}/${place}`);
    const partner = partnerOf(source, sources);
    const both = [index, partner].filter((i) => i >= 0).sort((a, b) => a - b);
    const found = await Promise.all(both.map(load));
    if (task !== name || sources[index] !== source) return;
    const isGraded = hasCredit(source);
    const drawn = [];
    both.forEach((i, position) => {
      const tree = found[position].find((it) => it.task === name);
      if (!tree) {
        drawn.push(h('p', {}, `${name} is not in this page for `
          + `${sourceLabel(sources[i])}.`));
        return;
      }
      const title = `${name}, ${sourceLabel(sources[i])}: `
        + verdict(tree.summary);
      const figure = drawTree(tree, title, isGraded, (node, row) => {
        drawn.forEach((other) => other.classList.toggle(
            'current', other === figure));
        fill('detail', drawDetail(tree, node, row, isGraded));
      });
      figure.start = () => figure.choose(0, tree.nodes[0].chosen ?? 0);
      figure.source = i;
      drawn.push(figure);
    });
    fill('drawn', drawn);
    drawn.find((figure) => figure.source === index)?.start();
  }

  // A link to a tree of this page.
  const [, name, place] = location.hash.match(/^#(.+)\/(\d+)$/) || [];
  const known = sources.findIndex((source) => address(source) === name);
  const graded = sources.findIndex((source) => source.kind === 'step');
  const start = Math.max(known < 0 ? graded : known, 0);
  await show(start, known < 0 ? null : (await load(start))[place]?.task);
}

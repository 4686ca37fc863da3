// Draws a tree: one button per joint action, lines to the nodes that follow.

const CARD = {width: 244, perRole: 68, row: 48, gapX: 56, gapY: 14};
const COLUMN_HEAD = 28;

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
 * Places the nodes of a tree, each right of its parent.
 *
 * @return {{positions: {x, y}[], columns: {turn, phase, x}[], card: number,
 *           head: number, width: number, height: number}}
 */
function layout(nodes) {
  const numRoles = Math.max(...nodes.map((node) => node.groups.length));
  const card = CARD.width + CARD.perRole * (numRoles - 1);
  // A node with several rows has a heading.
  const head = nodes.some((node) => node.steps.length > 1) ? 26 : 4;
  const key = (node) => `${node.turn} ${node.phase}`;
  const columns = [...new Map(nodes.map((node) => [
    key(node), {turn: node.turn, phase: node.phase}])).values()].sort(
      (a, b) => a.turn - b.turn || a.phase - b.phase);
  columns.forEach((column, i) => {
    column.x = i * (card + CARD.gapX);
  });
  const children = nodes.map(() => []);
  nodes.forEach((node, i) => {
    if (i) children[node.parent].push(i);
  });
  const positions = nodes.map((node) => ({
    x: columns.find((column) => key(column) === key(node)).x, y: 0}));
  // Heights of subtrees; parents come before their children.
  const heights = nodes.map(
      (node) => head + node.steps.length * CARD.row + CARD.gapY);
  for (let i = nodes.length - 1; i >= 0; i--) {
    const below = children[i].reduce((sum, child) => sum + heights[child], 0);
    heights[i] = Math.max(heights[i], below);
  }
  nodes.forEach((_, i) => {
    let y = positions[i].y;
    children[i].sort((a, b) => nodes[a].joint_action - nodes[b].joint_action);
    for (const child of children[i]) {
      positions[child].y = y;
      y += heights[child];
    }
  });
  return {positions, columns, card, head, height: heights[0],
          width: columns.length * (card + CARD.gapX) - CARD.gapX};
}

function at(element, x, y, width) {
  element.style.left = `${x}px`;
  element.style.top = `${y}px`;
  element.style.width = `${width}px`;
  return element;
}

/**
 * Draws a tree.
 *
 * @param {object} tree
 * @param {string} title
 * @param {boolean} hasCredit whether candidates have advantages
 * @param {function(number, number)} onselect receives a node and its row
 * @return {HTMLElement} with `choose(node, row)`
 */
function drawTree(tree, title, hasCredit, onselect) {
  const {nodes} = tree;
  const {positions, columns, card, head, width, height} = layout(nodes);
  const largest = largestAdvantage(tree);
  const buttons = nodes.map((node, i) => node.steps.map((_, row) => h(
      'button', {
        type: 'button', class: node.chosen === row ? 'row chosen' : 'row',
        onclick: () => choose(i, row),
      }, rowContent(node, row, hasCredit, largest))));
  const canvas = h('div', {class: 'canvas'},
    drawLines(nodes, positions, card, head, width, height),
    columns.map((column) => at(h('div', {class: 'column-head'},
      h('strong', {}, `Turn ${column.turn + 1}`),
      ` ${rolesOf(nodes.find((node) => node.turn === column.turn
                             && node.phase === column.phase))}`),
      column.x, 0, card)),
    nodes.map((node, i) => at(h('div', {class: 'node', role: 'group',
      'aria-label': `Turn ${node.turn + 1}, ${rolesOf(node)}`},
      at(h('div', {class: 'node-head'}, nodeHead(node, hasCredit)), 0, 0, card),
      at(h('div', {class: 'rows'}, buttons[i]), 0, head, card)),
      positions[i].x, COLUMN_HEAD + positions[i].y, card)));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${COLUMN_HEAD + height}px`;

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
  return drawn;
}

function nodeHead(node, hasCredit) {
  const noun = node.groups.length > 1 ? 'joint action' : 'candidate';
  const values = node.groups.filter((group) => isNumber(group.value)).map(
      (group) => `value ${number(group.value)}`);
  const isZero = hasCredit && node.groups.every((group) =>
    group.candidates.every((candidate) => !candidate.advantage));
  return [node.steps.length > 1 && count(node.steps.length, noun), ...values,
          isZero && 'all advantages zero'].filter(Boolean).join(' · ');
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
      node.chosen === row && h('span', {class: 'tag'}, 'chosen'))];
}

/** Draws lines from joint actions to the nodes that follow them. */
function drawLines(nodes, positions, card, head, width, height) {
  const center = (node, row) => COLUMN_HEAD + positions[node].y + head
    + (row + 0.5) * CARD.row - 2;
  const paths = nodes.flatMap((node, i) => {
    if (!i) return [];
    const x = positions[node.parent].x + card;
    const y = center(node.parent, node.joint_action);
    const end = positions[i].x;
    const endY = center(i, node.chosen ?? 0);
    const middle = (x + end) / 2;
    const isChosen = nodes[node.parent].chosen === node.joint_action;
    return [svg('path', {
      class: isChosen ? 'chosen' : '',
      d: `M${x},${y} C${middle},${y} ${middle},${endY} ${end},${endY}`})];
  });
  return svg('svg', {
    class: 'lines', width, height: COLUMN_HEAD + height,
    'aria-hidden': 'true'}, ...paths);
}

// The head of the page, the tables of evaluations, and the config.

/** An interval and its middle between 0 and 100 %, as a picture. */
function intervalBar({success, interval}) {
  const bar = h('span', {class: 'interval', 'aria-hidden': 'true'},
    h('span', {class: 'range'}), h('span', {class: 'dot'}));
  const [low, high] = interval;
  bar.style.setProperty('--low', `${100 * low}%`);
  bar.style.setProperty('--high', `${100 * high}%`);
  bar.style.setProperty('--middle', `${100 * success}%`);
  return bar;
}

const intervalText = ({interval: [low, high]}) =>
  `${(100 * low).toFixed(1)} … ${(100 * high).toFixed(1)} %`;

const evaluationOf = (run, name) =>
  run.evaluations.find((evaluation) => evaluation.name === name);

/** 'environments.boards.plan_path.env' as 'Plan path'. */
function titleOf(module) {
  const name = words(module.replace(/\.env$/, '').split('.').at(-1));
  return name.slice(0, 1).toUpperCase() + name.slice(1);
}

function drawHead({runs}) {
  const [run, other] = runs;
  document.title = `${titleOf(run.task)}: ${run.name}`;
  fill('title', titleOf(run.task));
  fill('subtitle', [
    run.team && h('span', {}, `Team ${run.team}`), h('span', {}, run.algorithm),
    h('span', {class: 'state'}, run.state),
    h('code', {}, run.name),
    other && h('span', {}, 'compared with ', h('code', {}, other.name)),
  ]);
  const levels = ['before', 'after'].map(
      (name) => evaluationOf(run, name)?.sandbox).filter(Boolean);
  const [first, last = first] = levels;
  fill('figures', ['before', 'after'].map((name) => {
    // Programs that could do other things make no comparison.
    if (name === 'before' && first !== last) {
      return figure('Success before training', UNKNOWN, h('span', {},
          `sandbox level ${first}, and ${last} after`));
    }
    const evaluation = evaluationOf(run, name);
    return figure(
        `Success ${name} training`,
        evaluation ? percent(evaluation.success) : UNKNOWN,
        evaluation && [intervalBar(evaluation), h('span', {},
            `95 %: ${intervalText(evaluation)}, `
            + count(evaluation.num_tasks, 'task'))]);
  }),
  figure('Steps', number(run.steps, 0), h('span', {}, duration(run.seconds))),
  figure('Generated tokens', run.tokens.toLocaleString('en'),
         h('span', {}, 'in training')),
  figure('Config', h('code', {}, run.hash), h('span', {}, 'hash')));
}

const figure = (label, value, ...rest) => h('div', {class: 'figure'},
  h('div', {class: 'label'}, label), h('div', {class: 'value'}, value),
  h('div', {class: 'rest'}, rest));

function duration(seconds) {
  const minutes = Math.round(seconds / 60);
  if (seconds < 90) return `${Math.round(seconds)} s of steps`;
  return minutes < 90 ? `${minutes} min of steps`
    : `${number(seconds / 3600, 1)} h of steps`;
}

function drawEvaluations({runs}) {
  const lines = runs.flatMap((run) => run.evaluations.map((it) => [
    runs.length > 1 ? `${run.label}: ${it.name}` : it.name,
    h('span', {class: 'with-bar'}, percent(it.success), intervalBar(it)),
    intervalText(it), count(it.num_tasks - it.num_left_out, 'task'),
    number(it.mean_return), number(it.mean_turns, 2),
    number(it.mean_turns_to_solve, 2), percent(it.truncated),
    number(it.step, 0), number(it.sampling.temperature, 2), it.split,
    it.sandbox || 'no programs',
    Object.entries(it.policy_map).map(
        ([role, policy]) => `${role}: ${policy}`).join(', ')]));
  const matrices = runs.flatMap((run) => run.cross_play);
  fill('evaluations-body', lines.length ? [table('Evaluations', [
    'name', 'success', '95 % interval', 'played', 'return', 'turns',
    'turns to solve', 'truncated', 'after step', 'temperature', 'split',
    'sandbox', 'policies'], lines), ...matrices.map(drawCrossPlay)]
    : h('p', {}, 'None is done yet.'));
}

/** Success of each pair of policies that played two roles. */
const drawCrossPlay = ({title, header, rows}) => h('div', {},
  h('h3', {}, title), table(title, header, rows.map(
      ([name, ...values]) => [name, ...values.map(percent)])));

function drawConfig({runs}) {
  const [run, other] = runs;
  const names = [...new Set(runs.flatMap((it) => Object.keys(it.config)))];
  const rows = names.sort().map((name) => {
    const differs = other && run.config[name] !== other.config[name];
    return [h('code', {class: differs && 'differs'}, name),
            ...runs.map((it) => h('code', {class: differs && 'differs'},
                it.config[name] ?? UNKNOWN))];
  });
  fill('config-body', h('details', {open: Boolean(other)},
    h('summary', {}, other ? 'All keys; those that differ are marked'
      : 'All keys'),
    table('Config', ['key', ...runs.map((it) => it.label)], rows)));
}

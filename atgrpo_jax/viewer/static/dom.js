// Elements, numbers as text, and the data in the page.

/** Creates an element. Children that are strings become text, never markup. */
function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('on')) {
      element.addEventListener(key.slice(2), value);
    } else if (value === true) {
      element.setAttribute(key, '');
    } else if (value !== false && value != null) {
      element.setAttribute(key, value);
    }
  }
  element.append(...children.flat(2).filter(
      (child) => child != null && child !== false && child !== ''));
  return element;
}

const byId = (id) => document.getElementById(id);

/** Replaces the children of an element. */
function fill(id, ...children) {
  byId(id).replaceChildren(...children.flat().filter((child) => child));
}

/** Unpacks the JSON in an element of the page. */
async function unpack(id) {
  const text = atob(byId(id).textContent);
  const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(
      new DecompressionStream('gzip'));
  return new Response(stream).json();
}

const isNumber = (x) => typeof x === 'number';

/** A number as short text, or a dash for a missing one. */
function number(x) {
  if (!isNumber(x)) return '–';
  const text = Math.abs(x) < 1e-12 ? '0' : String(Number(x.toPrecision(3)));
  return text.replace('-', '−');
}

/** A number with two decimals. */
const fixed = (x) => isNumber(x)
  ? x.toFixed(2).replace(/^-0\.00$/, '0.00').replace('-', '−') : '–';

/** A number with two decimals and its sign. */
const signed = (x) => isNumber(x) && fixed(x) !== '0.00' && x > 0
  ? `+${fixed(x)}` : fixed(x);

/** 'parse_error' as 'parse error'. */
const words = (name) => String(name).replaceAll('_', ' ');

const count = (n, noun) => `${n} ${noun}${n === 1 ? '' : 's'}`;

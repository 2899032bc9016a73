'use strict';
// Numbers in words, elements without HTML, colours of the theme.

const format = {
  count: n => Math.round(n).toLocaleString('en-US'),
  bytes(n) {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
    let unit = 0;
    while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit++; }
    const text = Number.isInteger(n) ? String(n) : n.toFixed(n < 10 ? 2 : 1);
    return `${text} ${units[unit]}`;
  },
  // Bytes to the last one where they are few enough to be read.
  exact: n => n < 1e7 ? `${format.count(n)} B` : `${format.bytes(n)} (${format.count(n)} B)`,
  time(ns) {
    const size = Math.abs(ns);
    if (size < 1e3) return `${Math.round(ns)} ns`;
    if (size < 1e6) return `${format.digits(ns / 1e3)} µs`;
    if (size < 1e9) return `${format.digits(ns / 1e6)} ms`;
    if (size < 6e11) return `${format.digits(ns / 1e9)} s`;
    return `${(ns / 6e10).toFixed(1)} min`;
  },
  digits: n => n.toFixed(Math.abs(n) < 10 ? 2 : Math.abs(n) < 100 ? 1 : 0),
  // A moment of the trace, to the nanosecond.
  moment(ns) {
    const sign = ns < 0 ? '-' : '';
    const [whole, part] = (Math.abs(ns) / 1e9).toFixed(9).split('.');
    return `${sign}${whole}.${part.replace(/(\d{3})(?=\d)/g, '$1\u202f')} s`;
  },
  percent: share => `${(100 * share).toFixed(share < 0.0995 ? 2 : 1)} %`,
  plural: (n, one, many) => `${format.count(n)} ${n === 1 ? one : many ?? one + 's'}`,
};

// An element with attributes and children; texts are texts, never HTML.
function make(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === 'class') element.className = value;
    else if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? '' : value);
  }
  for (const child of children.flat()) if (child !== undefined && child !== null) element.append(child);
  return element;
}

const $ = id => document.getElementById(id);

// `kinds` of words.rs, in its order.
const KINDS = [
  ['launch', 'kernel launch'], ['graph', 'graph replay'], ['copy', 'copy'], ['fill', 'fill, memset'], ['inline', 'upload by the driver'],
  ['wait', 'wait'], ['semaphore', 'release'], ['other', 'other'], ['broken', 'not decoded, lost, fault'],
];

// Marks on the timeline that are no operations.
const marksOf = data => [...data.losses.marks, ...data.faults.marks.map(f => ({ ...f, what: `the GPU faulted: ${f.what}` }))];

const colors = { kinds: [] };
function readColors() {
  const style = getComputedStyle(document.documentElement);
  const value = name => style.getPropertyValue(`--${name}`).trim();
  for (const name of ['ground', 'panel', 'ink', 'soft', 'line', 'hover', 'accent', 'bad', 'warn', 'row']) colors[name] = value(name);
  colors.onKind = value('on-kind');
  colors.kinds = KINDS.map(([name]) => value(name));
}

const still = () => matchMedia('(prefers-reduced-motion: reduce)').matches;
const narrow = () => innerWidth < 640;

// The width of a letter of names, in the context's font.
const letterWidth = context => context.measureText('gemm_bf16_128x128_Kernel').width / 24;

// A canvas of so many CSS pixels, sharp on this screen; its context draws in CSS pixels.
function sized(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

// The one tooltip. Lines of text, the first one bold.
const tip = {
  show(x, y, lines) {
    const box = $('tip');
    box.replaceChildren(...lines.filter(Boolean).map((line, n) => make(n ? 'span' : 'b', null, line)));
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const left = x + 16 + width > innerWidth - 8 ? Math.max(8, x - 16 - width) : x + 16;
    const top = y + 18 + height > innerHeight - 8 ? Math.max(8, y - 12 - height) : y + 18;
    box.style.left = `${left}px`;
    box.style.top = `${top}px`;
  },
  hide() { $('tip').hidden = true; },
};

'use strict';
// Where operations lie: a row a channel, in it lanes whose operations do not overlap, and how a lane is drawn however many they are.

const LANE = 22;
const TICKS = 16;
const MOST_LANES = 6;
const PAD = 5;

// The rows of the channels that have operations.
function layout(ops, channels) {
  const counts = new Uint32Array(channels.length + 1);
  for (let i = 0; i < ops.length; i++) counts[ops.channel[i] + 1]++;
  for (let c = 0; c < channels.length; c++) counts[c + 1] += counts[c];
  const sorted = new Uint32Array(ops.length);
  const next = counts.slice();
  for (let i = 0; i < ops.length; i++) sorted[next[ops.channel[i]]++] = i;
  const rows = [];
  channels.forEach((channel, c) => {
    const of = sorted.subarray(counts[c], counts[c + 1]);
    if (!of.length) return;
    let inOrder = true;
    for (let i = 1; i < of.length && inOrder; i++) inOrder = ops.begin[of[i - 1]] <= ops.begin[of[i]];
    if (!inOrder) of.sort((a, b) => ops.begin[a] - ops.begin[b] || a - b);
    rows.push({ channel, number: c, ops: of, lanes: lanesOf(ops, of) });
  });
  const rank = row => [row.channel.gpu ?? 99, row.channel.engine === 'gr' ? 0 : 1, row.channel.pid ?? 0, row.channel.channel];
  rows.sort((a, b) => { const [x, y] = [rank(a), rank(b)]; return x.map((v, n) => v - y[n]).find(d => d) ?? 0; });
  let y = 0;
  for (const row of rows) {
    row.y = y;
    let inner = PAD;
    for (const lane of row.lanes) { lane.y = y + inner; lane.height = lane.ticks && row.lanes.length > 1 ? TICKS : LANE; inner += lane.height + 2; }
    row.height = Math.max(inner + PAD - 2, 36);
    const spare = (row.height - (inner - 2 + PAD)) / 2;
    for (const lane of row.lanes) lane.y += spare;
    y += row.height;
  }
  return { rows, height: y };
}

function lanesOf(ops, sorted) {
  const lane = new Int8Array(sorted.length);
  const ends = [];
  const sizes = new Uint32Array(MOST_LANES + 1);
  sorted.forEach((op, i) => {
    const [begin, duration] = [ops.begin[op], ops.duration[op]];
    let at = -1;
    if (duration >= 0) {
      at = ends.findIndex(end => end <= begin);
      if (at < 0 && ends.length < MOST_LANES) at = ends.push(0) - 1;
      if (at >= 0) ends[at] = begin + duration;
    }
    lane[i] = at;
    sizes[at < 0 ? MOST_LANES : at]++;
  });
  const make = (n, ticks) => {
    const size = sizes[n];
    return { ticks, ops: new Uint32Array(size), begin: new Float64Array(size), end: new Float64Array(size), used: 0, matches: null };
  };
  const lanes = ends.map((_, n) => make(n, false));
  const ticks = make(MOST_LANES, true);
  sorted.forEach((op, i) => {
    const to = lane[i] < 0 ? ticks : lanes[lane[i]];
    to.ops[to.used] = op;
    to.begin[to.used] = ops.begin[op];
    to.end[to.used++] = ops.begin[op] + (to.ticks ? 0 : ops.duration[op]);
  });
  const all = ticks.used ? [...lanes, ticks] : lanes;
  for (const one of all) one.sums = sumsOf(ops, one);
  return all;
}

// How many of each kind come before each place: what is below a pixel is drawn by shares, however many they are.
function sumsOf(ops, lane) {
  const sums = [];
  for (let i = 0; i < lane.used; i++) {
    const kind = ops.kind[lane.ops[i]];
    sums[kind] ??= new Uint32Array(lane.used + 1);
    sums[kind][i + 1] = 1;
  }
  for (const of of sums) if (of) for (let i = 0; i < lane.used; i++) of[i + 1] += of[i];
  return sums;
}

// How many matches come before each place; none without a search.
function countMatches(lane, matched) {
  lane.matches = null;
  if (!matched) return;
  const sums = new Uint32Array(lane.used + 1);
  for (let i = 0; i < lane.used; i++) sums[i + 1] = sums[i] + matched[lane.ops[i]];
  lane.matches = sums;
}

// Rectangles by colour, so that each colour is set once.
class Paint {
  constructor() { this.by = new Map(); this.labels = []; }
  rect(kind, dim, x, y, width, height) {
    const key = dim ? kind + 32 : kind;
    let list = this.by.get(key);
    if (!list) this.by.set(key, list = []);
    const at = list.length - 4;
    // Runs of pixels of one colour are one rectangle.
    if (at >= 0 && list[at + 1] === y && list[at + 3] === height && Math.abs(list[at] + list[at + 2] - x) < 0.01) list[at + 2] += width;
    else list.push(x, y, width, height);
  }
  // Wide ones stay apart from each other, and have one of two shades, by their names.
  alone(kind, dim, shade, x, y, width, height) {
    const key = kind + 16 + (dim ? 32 : 0) + 64 * shade;
    let list = this.by.get(key);
    if (!list) this.by.set(key, list = []);
    list.push(x, y, width, height);
  }
  draw(context) {
    for (const [key, list] of this.by) {
      context.globalAlpha = key & 32 ? 0.16 : key & 64 ? 0.8 : 1;
      context.fillStyle = colors.kinds[key & 15];
      for (let i = 0; i < list.length; i += 4) context.fillRect(list[i], list[i + 1], list[i + 2], list[i + 3]);
    }
    context.globalAlpha = 1;
  }
}

// Draws a lane: what is wide enough by itself, the rest in columns of one pixel (ticks: two) that stay where they are in time.
function drawLane(paint, view, lane, y, label) {
  const { begin, end, used, matches } = lane;
  const scale = view.width / (view.t1 - view.t0);
  const step = lane.ticks ? 2 : 1;
  const stepNs = step / scale;
  const wide = lane.ticks ? Infinity : 2.5;
  let i = place(begin, lane.ticks ? view.t0 - stepNs : view.t0, 0, used);
  if (!lane.ticks && i > 0 && end[i - 1] > view.t0) i--;
  while (i < used && begin[i] < view.t1) {
    const x = (begin[i] - view.t0) * scale;
    const width = (end[i] - begin[i]) * scale;
    if (width >= wide) {
      const [from, to] = [Math.max(x, -4), Math.min(x + width, view.width + 4)];
      const dim = matches !== null && matches[i + 1] === matches[i];
      paint.alone(lane.kinds[i], dim, lane.shades[i], from, y, Math.max(1, to - from - Math.min(1, width / 6)), lane.height);
      if (to - from >= 26 && !dim) label(i, from, to, y, lane.height);
      i++;
      continue;
    }
    const cell = Math.floor(begin[i] / stepNs);
    const stop = (cell + 1) * stepNs;
    let j = i + 1;
    if (j < used && begin[j] < stop) {
      let reach = 2;
      while (i + reach < used && begin[i + reach] < stop) reach *= 2;
      j = place(begin, stop, i + 1, Math.min(used, i + reach));
      // The last one may be the begin of something wide.
      if ((end[j - 1] - begin[j - 1]) * scale >= wide) j = Math.max(i + 1, j - 1);
    }
    drawCell(paint, lane, i, j, cell * step - view.t0 * scale, y, step);
    i = j;
  }
}

function drawCell(paint, lane, i, j, x, y, width) {
  const dim = lane.matches !== null && lane.matches[j] === lane.matches[i];
  const count = j - i;
  // Ticks are as high as there are many; whole pixels, so that runs of equal ones are one rectangle.
  const full = lane.ticks ? Math.min(lane.height, 10 + Math.round(2.2 * Math.log2(count))) : lane.height;
  let top = y + lane.height - full;
  if (count === 1) { paint.rect(lane.kinds[i], dim, x, top, width, full); return; }
  let left = full;
  let last = -1;
  for (let kind = 0; kind < lane.sums.length; kind++) {
    const sums = lane.sums[kind];
    const share = sums ? sums[j] - sums[i] : 0;
    if (!share) continue;
    if (last >= 0) {
      const height = Math.max(1, Math.round(full * lane.share / count));
      paint.rect(last, dim, x, top, width, Math.min(height, left - 1));
      top += Math.min(height, left - 1);
      left -= Math.min(height, left - 1);
    }
    last = kind;
    lane.share = share;
  }
  if (last >= 0 && left > 0) paint.rect(last, dim, x, top, width, left);
}

// What is at a moment of a lane, within so many ns: one operation, or how many there are.
function find(lane, time, around) {
  const { begin, end, used } = lane;
  const from = place(begin, time - around, 0, used);
  const to = place(begin, time + around, from, used);
  if (!lane.ticks) {
    const at = place(begin, time, 0, used) - (begin[place(begin, time, 0, used)] === time ? 0 : 1);
    if (at >= 0 && end[at] >= time && end[at] - begin[at] > 2 * around) return { at, from: at, to: at + 1 };
  }
  if (to > from) {
    let at = from;
    for (let i = from; i < to && i < from + 64; i++) if (Math.abs(begin[i] - time) < Math.abs(begin[at] - time)) at = i;
    return { at, from, to };
  }
  if (!lane.ticks && from > 0 && end[from - 1] >= time - around) return { at: from - 1, from: from - 1, to: from };
  return null;
}

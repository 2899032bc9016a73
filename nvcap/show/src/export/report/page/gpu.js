'use strict';
// The depth of the queue and how busy GPUs are, below the timeline and with its times.

// Entries that wait or run, as steps: when, and how many from then on.
function depths(entries, of) {
  const size = of.length;
  const ups = Float64Array.from(of, i => entries.there[i]).sort();
  const downs = Float64Array.from(of, i => entries.begin[i] + Math.max(0, entries.duration[i])).sort();
  const steps = { time: new Float64Array(2 * size), value: new Float64Array(2 * size) };
  let [u, d, n, value] = [0, 0, 0, 0];
  while (d < size) {
    if (u < size && ups[u] <= downs[d]) { steps.time[n] = ups[u++]; value++; } else { steps.time[n] = downs[d++]; value--; }
    steps.value[n++] = value;
  }
  return steps;
}

// Stretches in which any of these entries ran, with the sum of those before each.
function busyTimes(entries, of) {
  const sorted = of.filter(i => entries.duration[i] >= 0).sort((a, b) => entries.begin[a] - entries.begin[b]);
  const [begin, end, sum] = [[], [], [0]];
  for (const i of sorted) {
    const [from, to] = [entries.begin[i], entries.begin[i] + entries.duration[i]];
    const last = end.length - 1;
    if (last >= 0 && from <= end[last]) {
      if (to > end[last]) { sum[last + 1] += to - end[last]; end[last] = to; }
    } else { begin.push(from); end.push(to); sum.push(sum[last + 1] + to - from); }
  }
  return { begin: Float64Array.from(begin), end: Float64Array.from(end), sum: Float64Array.from(sum) };
}

// How long it was busy before a moment.
function busyUntil(busy, time) {
  const at = place(busy.begin, time);
  if (!at) return 0;
  return busy.sum[at] - Math.max(0, busy.end[at - 1] - Math.max(time, busy.begin[at - 1]));
}

function gpuPlots(data, entries, timeline) {
  const box = $('gpu');
  if (!entries.length) {
    box.append(make('p', { class: 'notes' }, 'Queue depth and busy time need times of the GPU, which this recording has not: ', make('code', null, 'nvcap record --gpu-time'), ' records them.'));
    return;
  }
  const byChannel = new Map();
  const byGpu = new Map();
  for (let i = 0; i < entries.length; i++) {
    const channel = entries.channel[i];
    if (!byChannel.has(channel)) byChannel.set(channel, []);
    byChannel.get(channel).push(i);
    const { gpu, pid } = data.channels[channel];
    const name = gpu === null ? `process ${pid ?? '?'}` : `gpu${gpu}`;
    if (!byGpu.has(name)) byGpu.set(name, []);
    byGpu.get(name).push(i);
  }
  const most = [...byChannel].sort((a, b) => b[1].length - a[1].length);
  const shown = most.slice(0, 5).map(([channel, of]) => ({ name: `channel ${data.channels[channel].channel}`, ...depths(entries, of) }));
  const rest = most.slice(5);
  if (rest.length) shown.push({ name: `${rest.length} other channels`, ...depths(entries, rest.flatMap(([, of]) => of)) });
  const gpus = [...byGpu].map(([name, of]) => ({ name, ...busyTimes(entries, of) }));

  // Per column of two pixels: the most entries that were there, and the share of the time in which a GPU ran.
  const cells = view => {
    const count = Math.max(2, Math.floor(view.width / 2));
    const width = (view.t1 - view.t0) / count;
    return { count, width, xs: Float64Array.from({ length: count }, (_, i) => view.t0 + (i + 0.5) * width) };
  };
  const depthOf = (steps, { count, width }, t0) => {
    const out = new Float64Array(count);
    let at = place(steps.time, t0);
    for (let i = 0; i < count; i++) {
      let value = at > 0 ? steps.value[at - 1] : 0;
      const until = t0 + (i + 1) * width;
      while (at < steps.time.length && steps.time[at] < until) value = Math.max(value, steps.value[at++]);
      out[i] = value;
    }
    return out;
  };
  const busyOf = (busy, { count, width }, t0) => {
    const out = new Float64Array(count);
    let before = busyUntil(busy, t0);
    for (let i = 0; i < count; i++) {
      const now = busyUntil(busy, t0 + (i + 1) * width);
      out[i] = Math.min(100, 100 * (now - before) / width);
      before = now;
    }
    return out;
  };
  const hues = [0, 2, 3, 1, 5, 6];
  const plot = (title, height, of, values, unit, range) => {
    const host = make('div', { class: 'plot', role: 'img', 'aria-label': `${title}, with the times of the timeline` });
    box.append(make('h3', null, title, ...of.length > 1 ? [make('span', null, ' · ', of.map((o, n) => [keyOf(hues[n % 6]), ` ${o.name}  `]).flat())] : []), host);
    const u = new uPlot({
      width: timeline.full, height, padding: [8, 0, 7, 0], legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      scales: { x: { time: false, range: () => [timeline.view.t0, timeline.view.t1] }, y: { range } },
      axes: [
        { show: false },
        { size: () => timeline.gutter, stroke: () => colors.soft, grid: { stroke: () => colors.line, width: 1 }, ticks: { show: false }, font: '11px system-ui, sans-serif', values: (_, all) => all.map(n => Number.isInteger(n) ? `${format.count(n)}${unit}` : ''), space: 26 },
      ],
      series: [{}, ...of.map((_, n) => ({
        stroke: () => colors.kinds[hues[n % 6]], width: 1.25, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }),
        fill: of.length === 1 ? () => `${colors.kinds[hues[0]]}40` : undefined,
      }))],
      hooks: {
        setSelect: [me => {
          if (me.select.width < 4) return;
          timeline.show(me.posToVal(me.select.left, 'x'), me.posToVal(me.select.left + me.select.width, 'x'));
          me.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        }],
      },
    }, [[0], ...of.map(() => [0])], host);
    host.addEventListener('pointermove', event => {
      const at = u.cursor.idx;
      if (at === null || at === undefined) { tip.hide(); return; }
      tip.show(event.clientX, event.clientY, [title, ...of.map((o, n) => `${o.name}: ${u.data[n + 1][at] === undefined ? '?' : u.data[n + 1][at].toFixed(unit === ' %' ? 1 : 0)}${unit}`), `at ${format.moment(u.data[0][at])}`]);
    });
    host.addEventListener('pointerleave', () => tip.hide());
    return view => {
      if (u.width !== timeline.full) u.setSize({ width: timeline.full, height });
      const cell = cells(view);
      u.setData([cell.xs, ...of.map(o => values(o, cell, view.t0))]);
    };
  };
  const draw = [
    plot('Queue depth: entries that wait or run', 120, shown, depthOf, '', (_, __, high) => [0, Math.max(2, Math.ceil(high * 1.08))]),
    plot('GPU busy', 96, gpus, busyOf, ' %', () => [0, 104]),
  ];
  // While the view moves, every second frame: the timeline goes first.
  let frame = 0;
  timeline.listeners.push((view, moving) => { if (!moving || frame++ % 2 === 0) for (const one of draw) one(view); });
  if (data.entries > data.entries_shown) {
    box.append(make('p', { class: 'notes' }, `Of ${format.count(data.entries)} ring entries with times of the GPU these plots have the first ${format.count(data.entries_shown)}.`));
  }
}

function keyOf(kind) {
  const swatch = make('span', { class: `swatch ${KINDS[kind][0]}` });
  swatch.style.display = 'inline-block';
  return swatch;
}

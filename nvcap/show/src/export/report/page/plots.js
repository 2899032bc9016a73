'use strict';
// Plots of points: how bytes were moved, and what graph replays are made of. uPlot gives axes and scales.

const powers = (min, max, most) => {
  const [from, to] = [Math.ceil(Math.log2(min)), Math.floor(Math.log2(max))];
  const step = Math.max(1, Math.ceil((to - from + 1) / most));
  const all = [];
  for (let n = Math.ceil(from / step) * step; n <= to; n += step) all.push(2 ** n);
  return all;
};

// Points with axes; they answer the pointer, and the arrow keys when the plot has the focus.
// points: { x, y, scale, kind, shape, r, text }; under(context, u) draws below them.
function points(host, { label, height, x, ys, points: all, under, left }) {
  const plot = make('div', { class: 'plot', tabindex: 0, role: 'group', 'aria-label': `${label}. Arrow keys go through its points; the values are in the table below.` });
  const spoken = make('span', { class: 'hidden', 'aria-live': 'polite' });
  host.append(plot, spoken);
  const axis = (of, key, side) => ({
    scale: key, side, label: of.label, labelSize: 20, labelFont: '12px system-ui, sans-serif', font: '11px system-ui, sans-serif', stroke: () => colors.soft,
    grid: { stroke: () => colors.line, width: 1, show: side !== 1 }, ticks: { stroke: () => colors.line, width: 1, size: 4 }, size: side === 2 ? 34 : 62,
    splits: (_, __, min, max) => powers(min, max, side === 2 ? (plot.clientWidth || 600) / 84 : height / 34), values: (_, splits) => splits.map(of.words), filter: (_, splits) => splits,
  });
  const scales = { x: { time: false, distr: 3, log: 2, range: () => x.range } };
  const axes = [axis(x, 'x', 2)];
  Object.entries(ys).forEach(([key, of], n) => {
    scales[key] = of.log ? { distr: 3, log: 2, range: () => of.range } : { range: () => of.range };
    if (of.log) axes.push(axis(of, key, n ? 1 : 3)); else axes.push({ scale: key, show: false });
  });
  let chosen = -1;
  const spot = (u, p) => [u.valToPos(p.x, 'x', true), u.valToPos(p.y, p.scale, true)];
  const u = new uPlot({
    width: plot.clientWidth || 600, height, padding: [12, 16, 0, left ? left() : 0], legend: { show: false },
    cursor: { show: false }, scales, axes,
    series: [{}, ...Object.keys(ys).map(scale => ({ scale, paths: () => null, points: { show: false } }))],
    hooks: {
      draw: [me => {
        const context = me.ctx;
        const ratio = devicePixelRatio || 1;
        context.save();
        under?.(context, me, ratio);
        all.forEach((p, n) => {
          const [px, py] = spot(me, p);
          const r = (p.r ?? 5) * ratio;
          context.globalAlpha = 0.82;
          context.fillStyle = colors.kinds[p.kind];
          context.strokeStyle = n === chosen ? colors.ink : colors.panel;
          context.lineWidth = (n === chosen ? 2.5 : 1) * ratio;
          context.beginPath();
          if (p.shape === 'diamond') { context.moveTo(px, py - r); context.lineTo(px + r, py); context.lineTo(px, py + r); context.lineTo(px - r, py); context.closePath(); } else context.arc(px, py, r, 0, 7);
          context.fill();
          context.globalAlpha = 1;
          context.stroke();
        });
        context.restore();
      }],
    },
  }, [[x.range[0], x.range[1]], ...Object.values(ys).map(of => [of.range[0], of.range[1]])], plot);
  const show = (n, say) => {
    if (n === chosen && !say) return;
    chosen = n;
    u.redraw(false);
    if (say && n >= 0) {
      const box = u.root.querySelector('canvas').getBoundingClientRect();
      const ratio = devicePixelRatio || 1;
      const [px, py] = spot(u, all[n]);
      tip.show(box.left + px / ratio, box.top + py / ratio, all[n].text);
      spoken.textContent = all[n].text.join(', ');
    }
  };
  plot.addEventListener('pointermove', event => {
    const box = u.root.querySelector('canvas').getBoundingClientRect();
    const ratio = devicePixelRatio || 1;
    let [best, near] = [-1, 18];
    all.forEach((p, n) => {
      const [px, py] = spot(u, p);
      const far = Math.hypot(px / ratio - (event.clientX - box.left), py / ratio - (event.clientY - box.top));
      if (far <= near) [best, near] = [n, far];
    });
    show(best);
    if (best >= 0) tip.show(event.clientX, event.clientY, all[best].text); else tip.hide();
  });
  const leave = () => { show(-1); tip.hide(); };
  plot.addEventListener('pointerleave', leave);
  plot.addEventListener('blur', leave);
  plot.addEventListener('keydown', event => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by || !all.length) { if (event.key === 'Escape') leave(); return; }
    event.preventDefault();
    show(chosen < 0 ? (by > 0 ? 0 : all.length - 1) : (chosen + by + all.length) % all.length, true);
  });
  new ResizeObserver(() => {
    if (left) u.padding = [12, 16, 0, left()];
    if (plot.clientWidth) u.setSize({ width: plot.clientWidth, height });
  }).observe(plot);
  return () => u.redraw(false, true);
}

const wide = (values, by) => {
  let [least, most] = [Infinity, 0];
  for (const value of values) { least = Math.min(least, value); most = Math.max(most, value); }
  return [least / by, Math.max(most * by, least * 2)];
};

const MOST_STRIPS = 40;
const HOW_KIND = { inline: 4, 'inline, several lines': 4, kernel: 0, 'copy engine': 2, 'copy engine, staged': 3 };

function thresholdText(t) {
  const series = t.series ? `${t.series}: ` : '';
  const piece = t.piece_bytes ? `, in pieces of ${format.exact(t.piece_bytes)}` : '';
  return t.certain
    ? `${series}${t.what} ${t.below} up to ${format.exact(t.up_to)}, ${t.above} from ${format.exact(t.from)}${piece}`
    : `${series}${t.what} ${t.above} from ${format.exact(t.from)}; ${t.below} below that up to ${format.exact(t.up_to)}, of this or other memory${piece}`;
}

function movesPlot(data) {
  const box = $('moves');
  const every = data.moves.filter(row => row.count);
  // Those of the most moves, in the order of the table.
  const often = new Set(every.slice().sort((a, b) => b.count - a.count).slice(0, MOST_STRIPS));
  const rows = every.filter(row => often.has(row));
  if (!rows.length) { $('move-notes').textContent = 'No copies and no memsets.'; return null; }
  $('move-notes').textContent = 'Each point is a size: the more moves of it, the larger. Dashed lines are thresholds: between the two sizes the driver changes its way.'
    + (every.length > rows.length ? ` The plot has the ${rows.length} rows of most moves, the table below all ${format.count(every.length)}.` : '');
  const name = row => `${row.series && row.series !== row.what ? `${row.series} · ` : ''}${row.what} ${row.how}`;
  const all = [];
  rows.forEach((row, n) => {
    for (const { bytes, count } of row.sizes) {
      if (!bytes) continue;
      all.push({
        x: bytes, y: rows.length - 1 - n, scale: 'y', kind: HOW_KIND[row.how] ?? 5, r: Math.min(11, 4 + Math.log2(count) * 0.75),
        text: [name(row), format.exact(bytes), `${format.plural(count, 'time')}`],
      });
    }
  });
  const redraw = [];
  if (all.length) {
    const range = wide(all.map(p => p.x), 1.7);
    const at = (t, how) => rows.length - 1 - rows.findIndex(r => r.series === t.series && r.what === t.what && r.how === how);
    const tall = () => narrow() ? 40 : 30;
    redraw.push(points(box, {
      label: 'How bytes were moved, by size', height: rows.length * tall() + 66, points: all,
      left: () => narrow() ? 8 : rows.some(r => r.series) ? 300 : 190,
      x: { label: 'bytes', range, words: format.bytes },
      ys: { y: { range: [-0.6, rows.length - 0.4] } },
      under(context, u, ratio) {
        context.font = `${12 * ratio}px system-ui, "DejaVu Sans", sans-serif`;
        context.textBaseline = 'middle';
        rows.forEach((row, n) => {
          const y = u.valToPos(rows.length - 1 - n, 'y', true);
          context.fillStyle = colors.line;
          context.fillRect(u.bbox.left, y, u.bbox.width, ratio);
          context.fillStyle = colors.soft;
          let text = name(row);
          const most = narrow() ? 54 : 45;
          if (text.length > most) text = `${text.slice(0, most - 1)}…`;
          if (narrow()) { context.textAlign = 'left'; context.fillText(text, u.bbox.left, y - 15 * ratio); } else { context.textAlign = 'right'; context.fillText(text, u.bbox.left - 12 * ratio, y); }
        });
        context.textAlign = 'left';
        context.strokeStyle = colors.warn;
        context.lineWidth = 1.5 * ratio;
        context.setLineDash([4 * ratio, 4 * ratio]);
        for (const t of data.thresholds) {
          const [below, above] = [at(t, t.below), at(t, t.above)];
          if (below >= rows.length || above >= rows.length) continue;
          const px = u.valToPos(Math.sqrt(t.up_to * t.from), 'x', true);
          context.beginPath();
          context.moveTo(px, u.valToPos(Math.min(below, above) - 0.34, 'y', true));
          context.lineTo(px, u.valToPos(Math.max(below, above) + 0.34, 'y', true));
          context.stroke();
        }
        context.setLineDash([]);
      },
    }));
  }
  if (data.thresholds.length) {
    box.append(make('h3', null, 'Thresholds that these sizes show'), make('ul', { class: 'lines', id: 'thresholds' }, data.thresholds.map(t => make('li', null, thresholdText(t)))));
  }
  box.append(make('details', null, make('summary', null, 'As a table'), plainTable(
    ['what', 'how', ...rows.some(r => r.series) ? ['series'] : [], 'count', 'bytes', 'smallest', 'largest', 'piece'],
    every.map(r => [r.what, r.how, ...rows.some(o => o.series) ? [r.series ?? '(outside of phases)'] : [], format.count(r.count), format.count(r.bytes), r.least === null ? '?' : format.count(r.least), r.most === null ? '?' : format.count(r.most), r.piece_bytes ? format.count(r.piece_bytes) : '']),
    rows.some(r => r.series) ? 3 : 2,
  )));
  return redraw;
}

function graphsPlot(data) {
  const box = $('graphs');
  const { replays, uploads, other_replays: others } = data.graphs;
  if (!replays.length && !uploads.submissions) { $('graphs-section').hidden = true; return null; }
  const notes = [];
  if (replays.length) notes.push('What a replay costs by its number of nodes: pushbuffer bytes (circles, left) and doorbells (diamonds, right).');
  if (uploads.submissions) notes.push(`Uploads: ${format.plural(uploads.submissions, 'submission')} wrote ${format.plural(uploads.qmds, 'QMD')} and launched nothing, ${format.exact(uploads.bytes)}.`);
  if (others) notes.push(`${format.plural(others, 'replay')} of still other kinds are not here.`);
  $('graph-notes').textContent = notes.join(' ');
  if (!replays.length) return null;
  const all = [];
  for (const r of replays) {
    const text = [`${format.plural(r.nodes, 'node')}: ${format.exact(r.bytes_each)}, ${format.plural(r.doorbells_each, 'doorbell')}`, `${format.plural(r.replays, 'replay')}, ${(r.bytes_each / Math.max(1, r.nodes)).toFixed(1)} B a node`, r.uploaded ? `${format.count(r.uploaded)} wrote their QMDs again` : ''];
    const size = Math.min(11, 5 + Math.log2(r.replays) * 0.75);
    if (r.nodes && r.bytes_each) all.push({ x: r.nodes, y: r.bytes_each, scale: 'y', kind: 1, r: size, text });
    if (r.nodes && r.doorbells_each) all.push({ x: r.nodes, y: r.doorbells_each, scale: 'bells', kind: 3, shape: 'diamond', r: size, text });
  }
  all.sort((a, b) => a.x - b.x);
  const redraw = [];
  if (all.length) {
    const of = scale => all.filter(p => p.scale === scale).map(p => p.y);
    redraw.push(points(box, {
      label: 'Graph replays: bytes and doorbells by nodes', height: 300, points: all,
      x: { label: 'nodes', range: wide(all.map(p => p.x), 1.4), words: format.count },
      ys: {
        y: { label: 'pushbuffer bytes', log: true, range: wide([...of('y'), 16], 1.6), words: format.bytes },
        bells: { label: 'doorbells', log: true, range: wide([...of('bells'), 1], 1.9), words: format.count },
      },
    }));
  }
  box.append(make('details', null, make('summary', null, 'As a table'), plainTable(
    ['nodes', 'replays', 'bytes each', 'doorbells each', 'QMDs again', 'kernels', 'memsets', 'copies'],
    replays.map(r => [r.nodes, r.replays, r.bytes_each, r.doorbells_each, r.uploaded, r.kernels, r.memsets, r.copies].map(format.count)), 0,
  )));
  return redraw;
}

// A table that is there as a whole, or says what it leaves out.
function plainTable(head, all, texts) {
  const most = 2000;
  const rows = all.slice(0, most);
  if (all.length > most) rows.push([`and ${format.count(all.length - most)} more: nvcap stats --json, nvcap decode -q`, ...head.slice(1).map(() => '')]);
  return make('div', { class: 'grid', tabindex: 0, role: 'group', 'aria-label': 'Table' }, make('table', null,
    make('thead', null, make('tr', null, head.map((h, n) => make('th', { scope: 'col', class: n < texts ? 'name' : '' }, make('span', { class: 'plain' }, h))))),
    make('tbody', null, rows.map(row => make('tr', null, row.map((cell, n) => make('td', { class: n < texts ? 'name' : '' }, cell)))))));
}

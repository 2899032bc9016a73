'use strict';
// Pointer, wheel and keys of the timeline; what is chosen, in words.

function showDetail(timeline, op) {
  const box = $('detail');
  if (op < 0) {
    box.replaceChildren('Choose an operation for its details: point at it and click, or with the keys ↑ ↓ a channel and . , its operations.');
    return;
  }
  const { name, kind, parts } = timeline.describe(op);
  const swatch = make('span', { class: `swatch ${kind[0]}` });
  swatch.style.display = 'inline-block';
  box.replaceChildren(
    swatch, ' ', make('strong', null, name), ` ${kind[1] === name ? '' : kind[1]}`,
    make('dl', null, parts.map(([what, value]) => make('div', null, what && make('dt', null, what), make('dd', null, value)))),
  );
}

function hover(timeline, event) {
  const at = timeline.at(event.offsetX, event.offsetY);
  const lines = [];
  if (at.mark) lines.push(at.mark.what, `at ${format.moment(at.mark.at)}`);
  else if (at.found && at.found.to - at.found.from > 1) {
    const { lane, found } = at;
    const count = found.to - found.from;
    lines.push(`${format.count(count)} operations within ${format.time(lane.begin[found.to - 1] - lane.begin[found.from])}`);
    const names = new Map();
    for (let i = found.from; i < Math.min(found.to, found.from + 20000); i++) {
      const name = timeline.data.names[timeline.ops.name[lane.ops[i]]];
      names.set(name, (names.get(name) ?? 0) + 1);
    }
    const often = [...names].sort((a, b) => b[1] - a[1]);
    for (const [name, n] of often.slice(0, 4)) lines.push(`${format.count(n)} × ${name}`);
    if (often.length > 4) lines.push(`and ${format.count(often.length - 4)} other names`);
    lines.push('zoom in to see each');
  } else if (at.found) {
    const { name, parts } = timeline.describe(at.lane.ops[at.found.at]);
    lines.push(name, ...parts.map(([what, value]) => what ? `${what} ${value}` : value));
  }
  if (lines.length) tip.show(event.clientX, event.clientY, lines); else tip.hide();
}

function listen(timeline) {
  const canvas = $('canvas');
  const held = new Map();
  let moved = 0;
  let pinch = 0;
  canvas.addEventListener('pointerdown', event => {
    held.set(event.pointerId, event.offsetX);
    canvas.setPointerCapture(event.pointerId);
    moved = 0;
    pinch = spread(held);
    $('timeline').focus({ preventScroll: true });
  });
  canvas.addEventListener('pointermove', event => {
    if (!held.has(event.pointerId)) { hover(timeline, event); return; }
    const by = event.offsetX - held.get(event.pointerId);
    held.set(event.pointerId, event.offsetX);
    moved += Math.abs(by);
    const { t0, t1, width } = timeline.view;
    const perPixel = (t1 - t0) / width;
    if (held.size === 2) {
      const now = spread(held);
      const middle = [...held.values()].reduce((a, b) => a + b) / 2;
      const fixed = timeline.time(middle);
      const factor = pinch / Math.max(8, now);
      timeline.show(fixed - (fixed - t0) * factor, fixed + (t1 - fixed) * factor, true);
      pinch = now;
    } else if (moved > 3) {
      tip.hide();
      canvas.classList.add('held');
      timeline.show(t0 - by * perPixel, t1 - by * perPixel, true);
    }
  });
  const end = event => {
    const clicked = held.delete(event.pointerId) && moved <= 3 && event.type === 'pointerup';
    canvas.classList.remove('held');
    if (!clicked) return;
    const at = timeline.at(event.offsetX, event.offsetY);
    if (at.row) timeline.chooseRow(timeline.rows.indexOf(at.row));
    timeline.choose(at.found ? at.lane.ops[at.found.at] : -1);
    hover(timeline, event);
  };
  canvas.addEventListener('pointerup', end);
  canvas.addEventListener('pointercancel', end);
  canvas.addEventListener('pointerleave', () => tip.hide());
  canvas.addEventListener('dblclick', event => timeline.zoom(0.25, event.offsetX / timeline.view.width));
  $('timeline').addEventListener('wheel', event => {
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      const x = Math.min(1, Math.max(0, (event.clientX - canvas.getBoundingClientRect().left) / timeline.view.width));
      timeline.zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY)) * 0.0045), x);
    } else if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
      event.preventDefault();
      timeline.pan(sideways / timeline.view.width);
    }
  }, { passive: false });
  $('overview').addEventListener('pointerdown', event => {
    const box = $('overview');
    box.setPointerCapture(event.pointerId);
    const jump = e => {
      const { t0, t1 } = timeline.view;
      const at = timeline.all.t0 + e.offsetX / box.clientWidth * (timeline.all.t1 - timeline.all.t0);
      timeline.show(at - (t1 - t0) / 2, at + (t1 - t0) / 2, true);
    };
    jump(event);
    box.addEventListener('pointermove', jump);
    box.addEventListener('pointerup', () => box.removeEventListener('pointermove', jump), { once: true });
  });
  $('timeline').addEventListener('keydown', event => keys(timeline, event));
  $('in').addEventListener('click', () => timeline.zoom(0.5));
  $('out').addEventListener('click', () => timeline.zoom(2));
  $('fit').addEventListener('click', () => timeline.fit());
}

function spread(held) {
  const xs = [...held.values()];
  return xs.length === 2 ? Math.max(8, Math.abs(xs[0] - xs[1])) : 0;
}

function keys(timeline, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const some = event.shiftKey ? 0.8 : 0.15;
  const all = {
    ArrowLeft: () => timeline.pan(-some), ArrowRight: () => timeline.pan(some),
    a: () => timeline.pan(-some), d: () => timeline.pan(some), A: () => timeline.pan(-some), D: () => timeline.pan(some),
    w: () => timeline.zoom(0.6), s: () => timeline.zoom(1 / 0.6), '+': () => timeline.zoom(0.6), '=': () => timeline.zoom(0.6),
    '-': () => timeline.zoom(1 / 0.6), _: () => timeline.zoom(1 / 0.6),
    Home: () => timeline.fit(), 0: () => timeline.fit(),
    ArrowUp: () => timeline.chooseRow(timeline.row - 1, true), ArrowDown: () => timeline.chooseRow(timeline.row + 1, true),
    '.': () => timeline.step(1), ',': () => timeline.step(-1),
    Enter: () => { if (timeline.chosen >= 0) timeline.reveal(timeline.chosen, 'closer'); },
    Escape: () => { timeline.choose(-1); tip.hide(); },
    n: () => timeline.match(1), N: () => timeline.match(-1),
  };
  const act = all[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

const KEYS = [
  [['/'], 'search operations by name'], [['Enter'], 'in the search: the next match; with Shift the one before'],
  [['?'], 'these keys'], [['t'], 'light, dark, as the system has it'],
  [['←', '→', 'A', 'D'], 'in the timeline: move; with Shift farther'], [['+', '-', 'W', 'S'], 'zoom in and out'],
  [['Home', '0'], 'all of the time'], [['↑', '↓'], 'choose a channel'], [['.', ','], 'its next operation, the one before'],
  [['n', 'N'], 'next match, the one before'], [['Enter'], 'zoom to the chosen operation'], [['Esc'], 'choose none'],
  [['Ctrl'], 'and the wheel: zoom; Shift and the wheel: move; drag: move; double click: zoom in'],
  [['←', '→'], 'in a plot: the next point, the one before'],
  [['↑', '↓', 'Page ↑', 'Page ↓', 'Home', 'End'], 'in the table of kernels: its rows; Enter shows the operations of one'],
];

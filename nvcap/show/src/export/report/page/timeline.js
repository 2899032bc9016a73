'use strict';
// The timeline: what is in view, drawn; what is chosen; moving and zooming.

class Timeline {
  constructor(data, ops) {
    this.data = data;
    this.ops = ops;
    const { rows, height } = layout(ops, data.channels);
    this.rows = rows;
    this.height = height;
    for (const row of rows) for (const lane of row.lanes) {
      lane.kinds = new Uint8Array(lane.used);
      lane.shades = new Uint8Array(lane.used);
      for (let i = 0; i < lane.used; i++) { lane.kinds[i] = ops.kind[lane.ops[i]]; lane.shades[i] = ops.name[lane.ops[i]] & 1; }
    }
    let [first, last] = [Infinity, -Infinity];
    for (let i = 0; i < ops.length; i++) {
      first = Math.min(first, ops.begin[i], ops.begin[i] - ops.behind[i]);
      last = Math.max(last, ops.begin[i] + Math.max(0, ops.duration[i]));
    }
    this.marks = marksOf(data);
    // A loss or fault before the first operation or behind the last is in view too.
    for (const { at } of this.marks) [first, last] = [Math.min(first, at), Math.max(last, at)];
    if (!(first <= last)) [first, last] = [0, 1e6];
    const margin = Math.max((last - first) * 0.01, 50);
    this.all = { t0: first - margin, t1: last + margin };
    this.view = { ...this.all, width: 1 };
    this.goal = null;
    this.chosen = -1;
    this.row = 0;
    this.matched = null;
    this.listeners = [];
    this.frames = [];
    this.makeLabels();
    this.resize();
    new ResizeObserver(() => this.resize()).observe($('timeline'));
    $('rows').addEventListener('scroll', () => this.request(), { passive: true });
  }

  get gutter() { return narrow() ? 86 : 172; }

  makeLabels() {
    const gpus = new Set(this.rows.map(row => row.channel.gpu));
    this.labels = this.rows.map((row, n) => {
      const c = row.channel;
      const process = c.process || (c.pid ? `process ${c.pid}` : '');
      const engine = c.engine === '?' ? '' : c.engine;
      const gpu = c.gpu === null || gpus.size < 2 ? '' : `gpu${c.gpu} `;
      const second = [format.plural(row.ops.length, 'operation'), process && (c.pid && c.process ? `${process}/${c.pid}` : process)].filter(Boolean).join(' · ');
      const label = make('div', { class: 'label', title: `channel ${c.channel} ${second}` }, make('b', null, `${gpu}${engine} `, make('span', { class: 'roomy' }, 'channel '), make('span', { class: 'tight' }, 'ch'), String(c.channel)), make('small', null, second));
      label.style.top = `${row.y}px`;
      label.style.height = `${row.height}px`;
      label.dataset.row = n;
      return label;
    });
    $('inner').append(make('div', { class: 'labels' }, this.labels));
    $('inner').style.height = `${Math.max(this.height, 40)}px`;
  }

  resize() {
    const width = $('timeline').clientWidth;
    for (const label of this.labels) label.style.width = `${this.gutter}px`;
    this.visible = Math.min($('rows').clientHeight, Math.max(this.height, 40));
    this.view.width = Math.max(40, $('rows').clientWidth - this.gutter);
    this.full = width;
    $('canvas').style.marginLeft = `${this.gutter}px`;
    this.overview = null;
    this.request();
  }

  request() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(now => { this.asked = false; this.frame(now); });
  }

  frame(now) {
    if (this.goal) {
      const passed = still() ? 1 : 1 - Math.exp(-Math.min(50, now - (this.before ?? now - 16)) / 38);
      const { view, goal } = this;
      view.t0 += (goal.t0 - view.t0) * passed;
      view.t1 += (goal.t1 - view.t1) * passed;
      const near = (goal.t1 - goal.t0) * 0.0015;
      if (Math.abs(view.t0 - goal.t0) + Math.abs(view.t1 - goal.t1) < near) { view.t0 = goal.t0; view.t1 = goal.t1; this.goal = null; }
    }
    this.before = now;
    const begun = performance.now();
    this.draw();
    for (const listener of this.listeners) listener(this.view, this.goal !== null);
    this.frames.push(performance.now() - begun);
    if (this.frames.length > 600) this.frames.splice(0, 300);
    if (this.goal) this.request(); else this.before = undefined;
  }

  // Makes this the view, within what there is.
  show(t0, t1, atOnce) {
    const most = this.all.t1 - this.all.t0;
    const span = Math.min(most, Math.max(20, t1 - t0));
    const middle = (t0 + t1) / 2;
    t0 = Math.min(Math.max(middle - span / 2, this.all.t0), this.all.t1 - span);
    const goal = { t0, t1: t0 + span };
    if (atOnce) { Object.assign(this.view, goal); this.goal = null; } else this.goal = goal;
    this.request();
  }

  get aim() { return this.goal ?? this.view; }
  fit() { this.show(this.all.t0, this.all.t1); }
  pan(share) { const { t0, t1 } = this.aim; const by = (t1 - t0) * share; this.show(t0 + by, t1 + by); }
  zoom(factor, at = 0.5) {
    const { t0, t1 } = this.aim;
    const fixed = t0 + (t1 - t0) * at;
    this.show(fixed - (fixed - t0) * factor, fixed + (t1 - fixed) * factor);
  }
  time(x) { return this.view.t0 + x / this.view.width * (this.view.t1 - this.view.t0); }
  x(time) { return (time - this.view.t0) / (this.view.t1 - this.view.t0) * this.view.width; }

  draw() {
    this.drawAxis();
    this.drawOverview();
    const top = $('rows').scrollTop;
    const { view } = this;
    const context = sized($('canvas'), view.width, this.visible);
    context.fillStyle = colors.panel;
    context.fillRect(0, 0, view.width, this.visible);
    this.drawGrid(context);
    const paint = new Paint();
    const words = [];
    this.rows.forEach((row, n) => {
      const y = row.y - top;
      if (y > this.visible || y + row.height < 0) return;
      if (n === this.row) { context.globalAlpha = 0.6; context.fillStyle = colors.hover; context.fillRect(0, y, view.width, row.height); context.globalAlpha = 1; }
      context.fillStyle = colors.line;
      context.fillRect(0, y + row.height - 1, view.width, 1);
      for (const lane of row.lanes) drawLane(paint, view, lane, lane.y - top, (i, from, to, ly, height) => words.push(lane.ops[i], from, to, ly + height / 2));
    });
    paint.draw(context);
    this.drawWords(context, words);
    this.drawMarks(context, top);
    this.drawChosen(context, top);
  }

  drawWords(context, words) {
    context.font = '11px system-ui, "DejaVu Sans", sans-serif';
    context.textBaseline = 'middle';
    context.fillStyle = colors.onKind;
    const letter = letterWidth(context);
    for (let i = 0; i < words.length; i += 4) {
      const [from, to] = [Math.max(words[i + 1], 0) + 5, Math.min(words[i + 2], this.view.width) - 5];
      const room = Math.floor((to - from) / letter);
      if (room < 2) continue;
      const name = this.data.names[this.ops.name[words[i]]];
      context.fillText(name.length > room ? `${name.slice(0, room - 1)}…` : name, from, words[i + 3] + 0.5, to - from);
    }
  }

  // Moments between the lines of the axis: 1, 2 or 5 of a power of ten.
  steps() {
    const span = this.view.t1 - this.view.t0;
    const rough = span / Math.max(2, this.view.width / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(1, power * [1, 2, 5, 10].find(n => n * power >= rough));
    return { step, first: Math.ceil(this.view.t0 / step) * step };
  }

  drawGrid(context) {
    const { step, first } = this.steps();
    context.fillStyle = colors.row;
    for (let t = first; t < this.view.t1; t += step) context.fillRect(Math.round(this.x(t)), 0, 1, this.visible);
  }

  get axisHeight() { return this.data.phases.length ? 44 : 26; }

  // Phases by name, in a strip of their own; those below a few pixels are a band that says so.
  drawPhases(context) {
    context.save();
    context.beginPath();
    context.rect(this.gutter, 26, this.view.width, 18);
    context.clip();
    let until = -Infinity;
    for (const [name, first, last] of this.data.phases) {
      const [from, to] = [this.x(first), Math.max(this.x(last), this.x(first) + 2)];
      if (to < 0 || from > this.view.width || to < until + 0.7) continue;
      until = to;
      context.fillStyle = colors.hover;
      context.fillRect(this.gutter + from, 27, to - from, 16);
      context.fillStyle = colors.accent;
      context.fillRect(this.gutter + from, 27, 1.5, 16);
      const room = Math.floor((Math.min(to, this.view.width) - Math.max(from, 0) - 8) / letterWidth(context));
      const text = this.data.phase_names[name];
      context.fillStyle = colors.soft;
      if (room > 3) context.fillText(text.length > room ? `${text.slice(0, room - 1)}…` : text, this.gutter + Math.max(from, 0) + 5, 35.5);
    }
    context.restore();
    context.fillStyle = colors.soft;
    context.fillText('phases', 8, 35.5);
  }

  drawAxis() {
    const context = sized($('axis'), this.full, this.axisHeight);
    context.clearRect(0, 0, this.full, this.axisHeight);
    context.font = '11px system-ui, "DejaVu Sans", sans-serif';
    context.textBaseline = 'middle';
    const { step, first } = this.steps();
    const [unit, word] = step >= 1e8 ? [1e9, 's'] : step >= 1e5 ? [1e6, 'ms'] : step >= 100 ? [1e3, 'µs'] : [1, 'ns'];
    // Far from the beginning labels count from a round moment, which stands in the corner.
    const far = Math.abs(this.view.t0) >= unit * 10000;
    const base = far ? Math.floor(this.view.t0 / (unit * 1000)) * unit * 1000 : 0;
    const digits = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
    context.fillStyle = colors.soft;
    context.fillText(far ? `${(base / 1e9).toFixed(unit >= 1e6 ? 0 : unit >= 1e3 ? 3 : 6)} s +` : 'time', 8, 13);
    for (let t = first; t < this.view.t1; t += step) {
      const x = this.gutter + this.x(t);
      context.fillStyle = colors.line;
      context.fillRect(Math.round(x), 18, 1, 8);
      context.fillStyle = colors.soft;
      const text = `${far ? '+' : ''}${((t - base) / unit).toFixed(digits)} ${word}`;
      if (x + 60 < this.full) context.fillText(text, x + 4, 13);
    }
    if (this.data.phases.length) this.drawPhases(context);
  }

  drawOverview() {
    const canvas = $('overview');
    const width = canvas.clientWidth;
    const context = sized(canvas, width, 40);
    canvas.style.width = '';
    if (!this.overview || this.overview.width !== width) this.overview = this.makeOverview(width);
    context.clearRect(0, 0, width, 40);
    const { most, kinds } = this.overview;
    for (let x = 0; x < width; x++) {
      let sum = 0;
      for (const of of kinds) if (of) sum += of[x];
      if (!sum) continue;
      const height = 3 + 33 * Math.log1p(sum) / Math.log1p(most);
      let y = 38;
      kinds.forEach((of, kind) => {
        if (!of || !of[x]) return;
        const part = height * of[x] / sum;
        context.fillStyle = colors.kinds[kind];
        context.fillRect(x, y - part, 1, part);
        y -= part;
      });
    }
    const span = this.all.t1 - this.all.t0;
    const from = (this.view.t0 - this.all.t0) / span * width;
    const to = Math.max(from + 3, (this.view.t1 - this.all.t0) / span * width);
    context.globalAlpha = 0.72;
    context.fillStyle = colors.ground;
    context.fillRect(0, 0, from, 40);
    context.fillRect(to, 0, width - to, 40);
    context.globalAlpha = 1;
    context.strokeStyle = colors.accent;
    context.lineWidth = 1.5;
    context.strokeRect(Math.max(0.75, from), 0.75, Math.min(width - 1.5, to - from), 38.5);
  }

  makeOverview(width) {
    const kinds = [];
    const scale = width / (this.all.t1 - this.all.t0);
    for (let i = 0; i < this.ops.length; i++) {
      const of = kinds[this.ops.kind[i]] ??= new Uint32Array(width + 1);
      of[Math.floor((this.ops.begin[i] - this.all.t0) * scale)]++;
    }
    let most = 1;
    for (let x = 0; x <= width; x++) most = Math.max(most, kinds.reduce((sum, of) => sum + (of ? of[x] : 0), 0));
    return { width, kinds, most };
  }

  // The row of a channel; one without operations has none.
  rowOf(channel) { return this.rows.find(r => r.channel.channel === channel); }

  // A mark without a row is drawn over all rows.
  drawMarks(context, top) {
    for (const { at, channel } of this.marks) {
      const x = Math.round(this.x(at));
      if (x < -1 || x > this.view.width) continue;
      const row = this.rowOf(channel);
      context.fillStyle = colors.kinds[8];
      if (row) context.fillRect(x, row.y - top, 2, row.height - 1); else context.fillRect(x, 0, 1, this.visible);
    }
  }

  // The lane of an operation, and its place in it.
  laneOf(op) {
    const row = this.rows.find(r => r.number === this.ops.channel[op]);
    for (const lane of row?.lanes ?? []) {
      for (let i = place(lane.begin, this.ops.begin[op], 0, lane.used); i < lane.used && lane.begin[i] === this.ops.begin[op]; i++) {
        if (lane.ops[i] === op) return { row, lane, at: i };
      }
    }
    return null;
  }

  drawChosen(context, top) {
    const found = this.chosen >= 0 && this.laneOf(this.chosen);
    if (!found) return;
    const { lane, at } = found;
    const [from, to] = [this.x(lane.begin[at]), this.x(lane.end[at])];
    context.strokeStyle = colors.ink;
    context.lineWidth = 2;
    const width = Math.max(lane.ticks ? 2 : 3, Math.min(to, this.view.width + 6) - Math.max(from, -6));
    context.strokeRect(Math.max(from, -6) - 1, lane.y - top - 1, width + 2, lane.height + 2);
  }

  // What is below a place of the canvas.
  at(x, y) {
    y += $('rows').scrollTop;
    const time = this.time(x);
    const around = 2.5 / this.view.width * (this.view.t1 - this.view.t0);
    const row = this.rows.find(r => y >= r.y && y < r.y + r.height);
    const mark = this.marks.find(m => Math.abs(m.at - time) < around && [undefined, row].includes(this.rowOf(m.channel)));
    if (!row) return { time, mark };
    let lane = row.lanes.find(l => y >= l.y - 2 && y < l.y + l.height + 1);
    if (!lane && row.lanes.length === 1) lane = row.lanes[0];
    return { time, row, lane, mark, found: lane && find(lane, time, around) };
  }

  // An operation in words: what it is, then names and values.
  describe(op) {
    const { ops, data } = this;
    const parts = [];
    const add = (name, value) => { if (value) parts.push([name, value]); };
    const onGpu = ops.flags[op] & ON_GPU;
    if (ops.duration[op] >= 0) add('took', format.time(ops.duration[op]));
    add(onGpu ? 'began on the GPU' : 'submitted', format.moment(ops.begin[op]));
    if (onGpu && ops.behind[op] >= 0) add('after its submission by', format.time(ops.behind[op]));
    if (ops.flags[op] & LATER) add('note', 'part of one ring entry with the operation before it, whose time is that of both');
    if (ops.bytes[op]) add('bytes', format.exact(ops.bytes[op]));
    if (ops.bytes[op] && ops.duration[op] > 0) add('rate', `${(ops.bytes[op] / ops.duration[op]).toFixed(2)} GB/s`);
    add('', data.full_names[ops.name[op]]);
    add('', data.details[ops.detail[op]]);
    if (ops.phase[op]) add('phase', data.phase_names[ops.phase[op] - 1]);
    add('channel', String(data.channels[ops.channel[op]].channel));
    if (data.threads[ops.thread[op]] !== '?') add('thread', data.threads[ops.thread[op]]);
    add('submission', format.count(ops.serial[op]));
    return { name: data.names[ops.name[op]], kind: KINDS[ops.kind[op]], parts };
  }

  choose(op, reveal) {
    this.chosen = op;
    if (op >= 0) {
      const n = this.rows.findIndex(r => r.number === this.ops.channel[op]);
      this.chooseRow(n, reveal);
      if (reveal) this.reveal(op, reveal);
    }
    showDetail(this, op);
    this.request();
  }

  chooseRow(n, reveal) {
    if (n < 0 || n >= this.rows.length) return;
    this.labels[this.row]?.classList.remove('chosen');
    this.row = n;
    this.labels[n].classList.add('chosen');
    const [rows, row] = [$('rows'), this.rows[n]];
    if (reveal && (row.y < rows.scrollTop || row.y + row.height > rows.scrollTop + rows.clientHeight)) {
      rows.scrollTop = row.y - Math.max(0, (rows.clientHeight - row.height) / 2);
    }
    this.request();
  }

  // Moves the view to an operation; `closer` also zooms to it.
  reveal(op, closer) {
    const { t0, t1 } = this.aim;
    const [begin, length] = [this.ops.begin[op], Math.max(0, this.ops.duration[op])];
    let span = t1 - t0;
    if (closer === 'closer') span = Math.min(span, Math.max(length * 12, this.ops.duration[op] < 0 ? span / 4 : 0, 2000));
    if (span !== t1 - t0 || begin < t0 || begin + Math.min(length, span / 2) > t1) this.show(begin + length / 2 - span / 2, begin + length / 2 + span / 2);
  }

  // The operation of the chosen row that follows the chosen one in time, or comes before it.
  step(by) {
    const row = this.rows[this.row];
    if (!row) return;
    let at;
    if (this.chosen >= 0 && this.ops.channel[this.chosen] === row.number) {
      at = row.ops.indexOf(this.chosen) + by;
    } else {
      const middle = (this.aim.t0 + this.aim.t1) / 2;
      at = row.ops.findIndex(op => this.ops.begin[op] >= middle);
      if (at < 0) at = row.ops.length - 1;
    }
    if (at >= 0 && at < row.ops.length) this.choose(row.ops[at], true);
  }

  // Marks what has this in its name; returns how many that are.
  search(text) {
    const wanted = text.trim().toLowerCase();
    this.matched = null;
    let count = 0;
    if (wanted) {
      const { ops, data } = this;
      const has = text => text.toLowerCase().includes(wanted);
      const names = data.names.map((name, n) => has(name) || has(data.full_names[n] ?? ''));
      const details = data.details.map(has);
      this.matched = new Uint8Array(ops.length);
      for (let i = 0; i < ops.length; i++) count += this.matched[i] = names[ops.name[i]] || details[ops.detail[i]] ? 1 : 0;
    }
    for (const row of this.rows) for (const lane of row.lanes) countMatches(lane, this.matched);
    this.inTime ??= Uint32Array.from(this.ops.begin.keys()).sort((a, b) => this.ops.begin[a] - this.ops.begin[b] || a - b);
    this.request();
    return count;
  }

  // The next match in time behind the chosen one, or before it.
  match(by) {
    if (!this.matched || !this.ops.length) return;
    const { inTime } = this;
    const length = inTime.length;
    let at = this.chosen >= 0 ? inTime.indexOf(this.chosen) : by > 0 ? -1 : length;
    for (let n = 0; n < length; n++) {
      at = (at + by + length) % length;
      if (this.matched[inTime[at]]) { this.choose(inTime[at], 'closer'); return; }
    }
  }
}

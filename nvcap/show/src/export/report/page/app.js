'use strict';
// Puts the page together.

function theme() {
  const names = ['auto', 'light', 'dark'];
  const kept = () => { try { return localStorage.getItem('nvcap-theme'); } catch { return null; } };
  let now = names.includes(kept()) ? kept() : 'auto';
  const listeners = [];
  const apply = () => {
    if (now === 'auto') delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = now;
    $('theme').textContent = `Theme: ${now}`;
    readColors();
    for (const listener of listeners) listener();
  };
  const next = () => {
    // From what the system has to the other one first: a click changes something.
    const dark = matchMedia('(prefers-color-scheme: dark)').matches;
    const order = dark ? ['auto', 'light', 'dark'] : ['auto', 'dark', 'light'];
    now = order[(order.indexOf(now) + 1) % 3];
    try { localStorage.setItem('nvcap-theme', now); } catch { /* Kept for this visit only. */ }
    apply();
  };
  $('theme').addEventListener('click', next);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', apply);
  apply();
  return { next, changed: listener => listeners.push(listener) };
}

function head(data) {
  const { trace, file } = data;
  const name = file === '-' ? 'standard input' : file.split('/').pop();
  document.title = `${name}: nvcap report`;
  $('title').textContent = name;
  const facts = [];
  if (trace?.command) facts.push(trace.command);
  if (trace?.realtime_ns) facts.push(new Date(trace.realtime_ns / 1e6).toISOString().replace('T', ' ').replace(/\..*/, ' UTC'));
  if (trace?.driver) facts.push(`driver ${trace.driver}`);
  if (trace?.kernel) facts.push(`Linux ${trace.kernel}`);
  if (trace?.processor) facts.push(trace.processor);
  if (trace?.how) facts.push(`seen by ${trace.how}`);
  if (trace?.file) facts.push(`file ${trace.file} of a trace, counted from 0`);
  if (data.filtered) facts.push('filtered: what -e lets through');
  $('facts').textContent = facts.join(' · ') || 'a capture';
  $('footer').textContent = `Made by ${data.program}. No users’ data is on this page: no arguments, no patterns, no bytes. Plots by uPlot (MIT).`;
}

function verdict(data) {
  const { ledger, faults } = data;
  const box = $('verdict');
  const faulted = faults.marks.length > 0;
  const half = ledger.complete && data.exit_status !== 0 && !faulted;
  box.classList.toggle('bad', !ledger.complete || faulted);
  box.classList.toggle('half', half);
  const word = !ledger.complete ? 'Incomplete' : half ? 'Complete, but not all understood' : 'Complete';
  const text = data.verdict.replace(/^(INCOMPLETE|complete)(: |, and )/, '');
  const lines = faults.marks.map(f => make('li', null, `${format.moment(f.at)}: ${f.what}`));
  if (faults.more) lines.push(make('li', null, `and ${format.plural(faults.more, 'fault')} more`));
  box.append(make('span', { class: 'mark', 'aria-hidden': true }, ledger.complete && !half && !faulted ? '✓' : '!'),
    make('div', null, make('strong', null, faulted ? `${word}, and the GPU faulted` : word), make('p', null, text, '. ', make('a', { href: '#ledger' }, 'By channel')),
      faulted ? make('ul', { class: 'lines', id: 'faults' }, lines) : null));
}

function cards(data) {
  const gpus = data.gpu_time?.gpus ?? [];
  const [busy, span] = gpus.reduce(([b, s], g) => [b + g.work.busy_ns, s + g.work.busy_ns + g.work.idle_ns], [0, 0]);
  const launches = data.kernels.reduce((sum, k) => sum + k.launches, 0);
  const lasted = data.ledger.duration_ns;
  const all = [
    [lasted ? format.time(lasted) : '?', 'first to last submission'],
    [format.count(data.submissions), `submissions, ${format.bytes(data.submitted)}`],
    [format.count(launches), `kernel launches of ${format.plural(data.kernels.length, 'kernel')}`],
    [format.bytes(data.moved), 'moved by copies and memsets'],
    [format.count(data.costs.replays), `graph replays of ${format.plural(data.costs.replay_nodes, 'node')}`],
    span ? [format.percent(busy / span), 'of the time a GPU was busy'] : [format.count(data.ledger.channels.length), 'channels'],
  ];
  $('cards').append(...all.map(([value, what]) => make('div', { class: 'card' }, make('b', null, value), make('span', null, what))));
}

function timelineNotes(data, ops) {
  const box = $('timeline-notes');
  const notes = [];
  let timed = 0;
  for (let i = 0; i < ops.length; i++) if (ops.duration[i] >= 0) timed++;
  if (!ops.length) notes.push('There are no operations.');
  else if (timed === ops.length) notes.push('All slices have the GPU’s begin and duration.');
  else if (timed) notes.push(`Slices have the GPU’s begin and duration (${format.count(timed)} of ${format.count(ops.length)} operations); ticks are moments of submission, or of the begin where that alone is known.`);
  else notes.push('No durations are known: each tick is the moment at which an operation was submitted, not when the GPU worked on it; the more at a moment, the higher.');
  if (!data.all && data.mechanics) notes.push(` ${format.count(data.mechanics)} operations of the driver’s own are not shown (-v shows them).`);
  if (data.more_phases) notes.push(` ${format.plural(data.more_phases, 'operation')} lie in phases that are not drawn, for there are too many.`);
  if (data.losses.more) notes.push(` ${format.plural(data.losses.more, 'more loss', 'more losses')} are in the ledger, and not marked here.`);
  box.append(...notes);
  const said = data.gpu_time_notes ?? [];
  if (said.length) box.append(make('ul', { class: 'lines', id: 'gpu-time-notes' }, said.map(line => make('li', null, line))));
  if (data.operations > data.shown) {
    box.append(make('strong', { class: 'alarm' }, ` The timeline has the first ${format.count(data.shown)} of ${format.count(data.operations)} operations; tables and the other plots are of all.`), ' The rest: ',
      make('code', null, `nvcap report ${data.file} -e 'time_ns>${data.cut_ns}' -o rest.html`), data.filtered ? ' (with your own -e joined by &&)' : '');
  }
  const used = new Set(ops.kind);
  if (marksOf(data).length) used.add(8);
  $('legend').append(...KINDS.map(([name, words], kind) => used.has(kind) && make('li', null, make('span', { class: `swatch ${name}` }), words)).filter(Boolean),
    ...timed < ops.length ? [make('li', null, make('span', { class: 'swatch tick' }), timed ? 'tick: no duration known' : 'tick: the submission')] : []);
}

function ledger(data) {
  const { ledger: l } = data;
  const body = $('ledger-body');
  body.append(make('p', { class: l.complete ? '' : 'alarm', id: 'ledger-verdict' }, data.verdict));
  const why = [];
  for (const u of l.untraced) why.push(`untraced${u.pid ? ` (process ${u.pid})` : ''}: ${u.why}${u.count > 1 ? ` (${format.count(u.count)} times)` : ''}`);
  for (const [kind, n] of Object.entries(l.dropped_records)) if (n) why.push(`${format.plural(n, 'record')} dropped: ${kind}`);
  for (const u of l.unknown_doorbells) why.push(`${format.plural(u.count, 'doorbell')} of an unknown channel${u.token === null ? '' : `, token 0x${u.token.toString(16).padStart(5, '0')}`}`);
  for (const c of l.channels) if (c.missing.length) why.push(`channel ${c.channel} lacks entries ${c.missing.slice(0, 8).map(([a, b]) => `${a}..${b}`).join(' ')}${c.missing.length > 8 ? ' and more' : ''}`);
  if (why.length) body.append(make('ul', { class: 'lines' }, why.slice(0, 200).map(w => make('li', null, w))));
  if (why.length > 200) body.append(make('p', { class: 'notes' }, `and ${format.count(why.length - 200)} more`));
  if (!l.channels.length) return;
  const table = plainTable(
    ['process', 'engine', 'channel', 'submissions', 'entries', 'bytes', 'missing entries', 'unreadable bytes', 'late'],
    l.channels.map(c => [c.process ? `${c.process}/${c.pid ?? '?'}` : c.pid === null ? '?' : String(c.pid), c.engine ?? '?', String(c.channel), ...[c.submissions, c.entries, c.bytes, c.gaps, c.unreadable_bytes, c.late].map(format.count)]), 2);
  body.append(make('details', l.channels.length < 30 ? { open: true } : null, make('summary', null, `By channel (${format.count(l.channels.length)})`), table));
}

// Samples of program counters: kernels by share of the SMs' time, and the instructions at which warps stood.
function samples(data) {
  if (!data.samples) return;
  const { contexts, more } = data.samples;
  $('samples-section').hidden = false;
  $('sample-notes').textContent = 'The GPU sampled the program counters of its warps: shares are of the time of SMs that had work, within graph replays too; “no issue” is the part of the samples in whose cycle the scheduler issued nothing.'
    + (more ? ` ${format.plural(more, 'more context')} are not here.` : '');
  const percent = share => `${(100 * share).toFixed(2)} %`;
  const stall = s => s ? `${s.name} ${Math.round(100 * s.share)} %` : '';
  const of = c => {
    const said = [`${c.process ? `${c.process}, ` : ''}process ${c.pid}${c.gpu === null ? '' : ` on GPU ${c.gpu}`}: ${format.plural(c.samples, 'sample')} of ${format.plural(c.sms, 'SM')} in ${format.time(c.ns)}`];
    if (c.unknown) said.push(`${percent(c.unknown)} in no known kernel`);
    if (c.more_kernels) said.push(`${format.plural(c.more_kernels, 'more kernel')} with fewer`);
    const wrong = [c.lost && 'samples were lost', c.strange_bytes && `${format.plural(c.strange_bytes, 'byte')} of the stream not understood`].filter(Boolean);
    return [
      make('p', { class: 'notes' }, said.join('; '), wrong.length ? make('strong', { class: 'alarm' }, `; ${wrong.join('; ')}`) : ''),
      plainTable(['kernel', 'share', '±', 'samples', 'no issue', 'stall'], c.kernels.map(k => [k.kernel, percent(k.share), percent(k.half), format.count(k.samples), percent(k.not_issued), stall(k.stall)]), 1),
      make('details', { open: true }, make('summary', null, 'Instructions'),
        plainTable(['kernel', 'offset', 'share', 'of the kernel', 'no issue', 'stall'], c.instructions.map(i => [i.kernel, `+0x${i.offset.toString(16)}`, percent(i.share), percent(i.of_kernel), percent(i.not_issued), stall(i.stall)]), 1)),
    ];
  };
  $('samples').append(...contexts.flatMap(of));
}

// Shares of the GPUs: processes by the time for which they had each engine.
function shares(data) {
  if (!data.shares) return;
  const { engines, said, lacks } = data.shares;
  $('shares-section').hidden = false;
  $('shares-said').append(...said.map(s => make('li', null, s)), ...lacks.map(l => make('li', { class: 'alarm' }, l)));
  const percent = share => `${(100 * share).toFixed(2)} %`;
  const of = e => {
    const rows = e.rows.map(r => [r.pid === null ? r.name : `${r.name ?? '?'}/${r.pid}`, percent(r.share), format.count(r.slices), format.time(r.mean_ns), format.time(r.longest_ns)]);
    const rest = [['lost in switches', e.switching, e.switches], ['nobody had it', e.nobody], ['not known', e.unknown]];
    rows.push(...rest.filter(([, share]) => share).map(([what, share, n]) => [what, percent(share), n ? format.count(n) : '', '', '']));
    return [
      make('p', { class: 'notes' }, `${e.title}: ${format.time(e.ns)}${e.more ? `; ${format.plural(e.more, 'process', 'processes')} with less ${e.more === 1 ? 'is' : 'are'} not here` : ''}`),
      plainTable(['process', 'share', 'slices', 'mean', 'longest'], rows, 1),
    ];
  };
  $('shares').append(...engines.flatMap(of));
}

function searching(timeline) {
  const input = $('search');
  const go = text => {
    const count = timeline.search(text);
    $('matches').textContent = text.trim() ? format.plural(count, 'match', 'matches') : '';
    $('previous').disabled = $('next').disabled = !count;
  };
  input.addEventListener('input', () => go(input.value));
  input.addEventListener('keydown', event => {
    if (event.key === 'Enter') { event.preventDefault(); timeline.match(event.shiftKey ? -1 : 1); }
    if (event.key === 'Escape') { input.value = ''; go(''); $('timeline').focus({ preventScroll: true }); }
  });
  $('previous').addEventListener('click', () => timeline.match(-1));
  $('next').addEventListener('click', () => timeline.match(1));
  go('');
  return text => {
    input.value = text;
    go(text);
    timeline.choose(-1);
    timeline.fit();
    $('timeline-head').scrollIntoView({ block: 'start' });
    $('timeline').focus({ preventScroll: true });
  };
}

function help(themes) {
  $('keys-body').append(...KEYS.flatMap(([names, what]) => [make('span', null, names.flatMap((n, i) => i ? [' ', make('kbd', null, n)] : [make('kbd', null, n)])), make('span', null, what)]));
  const open = () => $('keys').showModal();
  $('keys-button').addEventListener('click', open);
  document.addEventListener('keydown', event => {
    const writes = event.target instanceof HTMLInputElement;
    if (writes || event.ctrlKey || event.metaKey || event.altKey || $('keys').open) return;
    if (event.key === '/') { event.preventDefault(); $('search').focus(); $('search').select(); }
    if (event.key === '?') { event.preventDefault(); open(); }
    if (event.key === 't') themes.next();
  });
}

async function start() {
  const data = JSON.parse($('data').textContent);
  const themes = theme();
  head(data);
  verdict(data);
  cards(data);
  help(themes);
  if (typeof DecompressionStream === 'undefined') {
    $('timeline-notes').append(make('strong', { class: 'alarm' }, 'This browser is too old for the timeline: it needs DecompressionStream (Chrome 80, Firefox 113, Safari 16.4).'));
    return;
  }
  ledger(data);
  samples(data);
  shares(data);
  ranksTables(data);
  const redraw = [movesPlot(data), graphsPlot(data)].flat().filter(Boolean);
  const { ops, entries } = await unpacked(data);
  delete data.columns;
  timelineNotes(data, ops);
  const timeline = new Timeline(data, ops);
  listen(timeline);
  const search = searching(timeline);
  kernelTable(data, search);
  gpuPlots(data, entries, timeline);
  for (const type of ['wheel', 'touchmove']) addEventListener(type, () => tip.hide(), { passive: true });
  timeline.chooseRow(0);
  showDetail(timeline, -1);
  themes.changed(() => { timeline.request(); for (const one of redraw) one(); });
  // For tests, and for the curious.
  globalThis.report = { timeline, data };
  requestAnimationFrame(() => requestAnimationFrame(() => {
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
  }));
}

start().catch(error => {
  $('timeline-notes').append(make('strong', { class: 'alarm' }, `This page cannot show its data: ${error.message}`));
  throw error;
});

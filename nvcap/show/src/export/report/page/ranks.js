'use strict';
// Ranks of a job: who holds up whom, by communicator and by rank.

function ranksTables(data) {
  const { ranks: of } = data;
  $('ranks-section').hidden = !of;
  if (!of) return;
  $('ranks-verdict').textContent = of.verdict;
  const body = $('ranks');
  const share = (part, all) => all ? format.percent(part / all) : '?';
  const time = ns => ns === null ? '?' : format.time(ns);
  const last = kind => kind.members.filter(m => m.last || m.last_with_others).sort((a, b) => b.last - a.last).slice(0, 4)
    .map(m => `${m.name} ${share(m.last, kind.timed)}`).join(', ') || (kind.timed ? 'none' : 'not known: no times');
  const rows = of.communicators.filter(c => c.members.length > 1).flatMap(c => c.kinds.map(k => [
    String(c.communicator), c.members.map(m => m.name).join(', '), k.kind, last(k), format.count(k.calls), format.count(k.matched), format.count(k.timed),
    time(k.skew_ns.median), time(k.skew_ns.p99), time(k.skew_ns.error), time(k.waited_ns)]));
  if (rows.length) body.append(make('h3', null, 'By communicator'), plainTable(['communicator', 'ranks', 'kind', 'came last', 'calls', 'matched', 'timed', 'skew', '99 %', '±', 'waited'], rows, 4));
  const lines = of.communicators.flatMap(c => [
    ...c.kinds.flatMap(k => k.members.filter(m => m.causes?.text.length && m.last * 10 >= k.timed)
      .map(m => `${m.name}, ${time(m.late_ns)} late on average to ${format.plural(m.last, 'call')} of ${k.kind}: ${m.causes.text.join('; ')}`)),
    ...c.absent ? [`${c.absent.kind} ${c.absent.call} of communicator ${c.communicator}: ${c.absent.present.join(', ')} there, ${c.absent.absent.join(', ')} not`] : [],
    ...c.doubts.map(d => `not certain: ${d.text}`),
  ]);
  if (lines.length) body.append(make('ul', { class: 'lines' }, lines.map(line => make('li', null, line))));
  body.append(make('h3', null, 'By rank'), plainTable(
    ['rank', 'process', 'compute', 'hidden', 'exposed', 'waiting', 'copies', 'unknown', 'idle', 'of'],
    of.ranks.map(r => [r.name, r.process ? `${r.process} (${r.pid ?? '?'})` : String(r.pid ?? '?'),
      ...[r.compute_ns, r.hidden_ns, r.exposed_ns, r.waiting_ns, r.copying_ns, r.unknown_ns, r.idle_ns].map(ns => share(ns, r.span_ns)), format.time(r.span_ns)]), 2));
  if (of.works_left_out) body.append(make('p', { class: 'alarm' }, `${format.plural(of.works_left_out, 'work')} left out, for there are too many: nvcap ranks has all.`));
}

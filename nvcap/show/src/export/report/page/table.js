'use strict';
// The table of kernels: sorted by any column, searched, and however long it is only the rows in view are in the document.

const ROW = 34;

// Launches by kernel, with the GPU's times of each where they are known.
function kernelRows(data) {
  const key = k => k.kernel_mangled ?? `program ${k.program}`;
  const rows = new Map();
  for (const k of data.kernels) {
    const name = k.kernel ?? `program 0x${BigInt(k.program ?? 0).toString(16)}`;
    rows.set(key(k), { name, search: `${name} ${k.kernel_mangled ?? ''}`.toLowerCase(), launches: k.launches });
  }
  for (const k of data.gpu_time?.kernels ?? []) {
    if (!data.entries) break;
    const alone = k.works === 1 && (k.kernel_mangled !== null || k.program !== null);
    const row = alone && rows.get(key(k)) || { name: k.kernel, search: k.kernel.toLowerCase(), launches: k.count * k.works, together: true };
    if (!alone || !rows.has(key(k))) rows.set(`${k.kernel} ${rows.size}`, row);
    const gpu = k.gpu;
    if (gpu.timed) Object.assign(row, { total: gpu.total_ns, mean: gpu.mean_ns, least: gpu.least_ns, p50: gpu.p50_ns, p99: gpu.p99_ns, most: gpu.most_ns, timed: gpu.timed });
  }
  const all = [...rows.values()];
  const total = all.reduce((sum, r) => sum + (r.total ?? 0), 0);
  const launches = all.reduce((sum, r) => sum + r.launches, 0);
  for (const row of all) row.share = total ? (row.total ?? 0) / total : row.launches / Math.max(1, launches);
  return { all, timed: total > 0 };
}

function kernelTable(data, search) {
  const { all, timed } = kernelRows(data);
  $('kernel-notes').replaceChildren(...timed
    ? ['Times are the GPU’s. Rows such as “3 in one entry” are launches whose time is known of all together; they count in the rows of their kernels, too. A name shows its operations in the timeline.']
    : ['Launches; nodes of graph replays count, too. A name shows its operations in the timeline. Times of kernels need a recording with the GPU’s time stamps: ', make('code', null, 'nvcap record --gpu-time')]);
  if (!all.length) { $('kernel-notes').textContent = 'No kernel was launched.'; $('kernel-search').disabled = true; return; }
  const time = of => row => row[of] === undefined ? '' : format.time(row[of]);
  const columns = [
    { key: 'name', head: 'Kernel', text: true },
    { key: 'launches', head: 'Launches', show: r => format.count(r.launches), width: 104 },
    ...timed ? [{ key: 'total', head: 'GPU time', show: time('total'), width: 104 }] : [],
    { key: 'share', head: timed ? 'Of the time' : 'Share', show: r => format.percent(r.share), width: 112, bar: true },
    ...timed ? [['mean', 'Mean'], ['p50', 'Median'], ['p99', '99 %'], ['most', 'Longest']].map(([key, head]) => ({ key, head, show: time(key), width: 92 })) : [],
  ];
  let sorting = { key: timed ? 'total' : 'launches', down: true };
  let rows = all;
  const head = columns.map(column => {
    const button = make('button', { type: 'button', onclick: () => sort(column) }, column.head);
    const cell = make('th', { scope: 'col', class: column.text ? 'name' : '' }, button);
    if (column.width) cell.style.width = `${column.width}px`;
    return cell;
  });
  const body = make('tbody');
  const table = make('table', { 'aria-rowcount': all.length + 1 }, make('thead', null, make('tr', { 'aria-rowindex': 1 }, head)), body);
  table.style.minWidth = `${columns.reduce((sum, c) => sum + (c.width ?? 240), 0)}px`;
  const grid = make('div', { class: 'grid fixed', id: 'kernel-grid', tabindex: 0, role: 'group', 'aria-label': 'Kernels' }, table);
  $('kernels').append(grid);
  const gap = height => {
    const cell = make('td', { colspan: columns.length });
    cell.style.height = `${height}px`;
    return make('tr', { class: 'gap', 'aria-hidden': true }, cell);
  };
  // Of the rows the chosen one alone is in the order of Tab, which so leads out of the table; arrows lead from row to row.
  let at = 0;
  const name = n => body.querySelector(`[aria-rowindex="${n + 2}"] [tabindex]`);
  const draw = () => {
    const focused = body.contains(document.activeElement);
    const most = rows.reduce((m, r) => Math.max(m, r.share), 1e-9);
    const first = Math.max(0, Math.floor(grid.scrollTop / ROW) - 8);
    const last = Math.min(rows.length, first + Math.ceil(grid.clientHeight / ROW) + 18);
    const shown = rows.slice(first, last).map((row, n) => make('tr', { 'aria-rowindex': first + n + 2 }, columns.map(column => {
      if (column.text) {
        const tabindex = first + n === at ? 0 : -1;
        const name = row.together ? make('span', { tabindex }, row.name) : make('button', { type: 'button', tabindex, title: row.name, onclick: () => search(row.name) }, row.name);
        return make('td', { class: 'name', title: row.name }, name);
      }
      const cell = make('td', { class: column.bar ? 'bar' : '' }, column.show(row));
      if (column.bar) { const bar = make('i'); bar.style.width = `calc((100% - 16px) * ${row.share / most})`; cell.append(bar); }
      return cell;
    })));
    body.replaceChildren(gap(first * ROW), ...shown, gap((rows.length - last) * ROW));
    // The row may be out of view: then it is not in the document.
    if (focused) (name(at) ?? grid).focus({ preventScroll: true });
  };
  const choose = n => {
    at = Math.min(Math.max(n, 0), rows.length - 1);
    const [top, bottom] = [at * ROW, (at + 2) * ROW - grid.clientHeight];
    grid.scrollTop = Math.max(bottom, Math.min(top, grid.scrollTop));
    draw();
    name(at)?.focus({ preventScroll: true });
  };
  const order = () => {
    const { key, down } = sorting;
    const sign = down ? -1 : 1;
    rows = rows.slice().sort((a, b) => sign * (key === 'name' ? a.name.localeCompare(b.name) : (a[key] ?? -1) - (b[key] ?? -1)) || a.name.localeCompare(b.name));
    columns.forEach((column, n) => {
      const is = column.key === key;
      if (is) head[n].setAttribute('aria-sort', down ? 'descending' : 'ascending'); else head[n].removeAttribute('aria-sort');
      head[n].firstChild.textContent = is ? `${column.head} ${down ? '▾' : '▴'}` : column.head;
    });
    draw();
  };
  const sort = column => {
    sorting = { key: column.key, down: sorting.key === column.key ? !sorting.down : !column.text };
    grid.scrollTop = 0;
    at = 0;
    order();
  };
  const find = () => {
    const wanted = $('kernel-search').value.trim().toLowerCase();
    rows = wanted ? all.filter(row => row.search.includes(wanted)) : all;
    $('kernel-count').textContent = wanted ? `${format.count(rows.length)} of ${format.count(all.length)}` : format.plural(all.length, 'kernel');
    grid.scrollTop = 0;
    at = 0;
    order();
  };
  $('kernel-search').addEventListener('input', find);
  let asked = false;
  grid.addEventListener('scroll', () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; draw(); });
  }, { passive: true });
  body.addEventListener('focusin', event => {
    at = Number(event.target.closest('tr').getAttribute('aria-rowindex')) - 2;
    for (const other of body.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    event.target.tabIndex = 0;
  });
  grid.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest('thead') || !rows.length) return;
    const page = Math.max(1, Math.floor(grid.clientHeight / ROW) - 2);
    const to = {
      ArrowDown: event.target === grid ? at : at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: rows.length - 1,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(to);
  });
  find();
}

'use strict';
// The columns of the page: base64, zlib, LEB128, zigzag, differences (columns.rs).

async function inflated(text) {
  const packed = atob(text);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function column(text, length, Type) {
  const bytes = await inflated(text);
  const numbers = new Type(length);
  let at = 0;
  let value = 0;
  for (let i = 0; i < length; i++) {
    let byte = bytes[at++];
    let word = byte & 127;
    for (let scale = 128; byte & 128; scale *= 128) {
      byte = bytes[at++];
      word += (byte & 127) * scale;
    }
    value += word % 2 ? -(word + 1) / 2 : word / 2;
    numbers[i] = value;
  }
  return numbers;
}

// The operations and entries, as typed arrays.
async function unpacked(data) {
  const of = data.columns;
  const types = {
    channel: Uint32Array, begin: Float64Array, duration: Float64Array, behind: Float64Array, kind: Uint8Array, name: Uint32Array,
    detail: Uint32Array, bytes: Float64Array, serial: Float64Array, thread: Uint32Array, phase: Uint32Array,
  };
  const ops = { length: data.shown };
  await Promise.all(Object.entries(types).map(async ([name, Type]) => { ops[name] = await column(of[name], data.shown, Type); }));
  ops.flags = new Uint8Array(data.shown);
  for (let i = 0; i < data.shown; i++) {
    ops.duration[i] -= 1;
    ops.flags[i] = ops.kind[i] >> 4;
    ops.kind[i] &= 15;
  }
  const entries = { length: data.entries_shown };
  const entryTypes = { channel: Uint32Array, there: Float64Array, begin: Float64Array, duration: Float64Array };
  await Promise.all(Object.entries(entryTypes).map(async ([name, Type]) => {
    entries[name] = await column(of[`entry_${name}`], data.entries_shown, Type);
  }));
  for (let i = 0; i < entries.length; i++) entries.duration[i] -= 1;
  return { ops, entries };
}

const ON_GPU = 1;
const LATER = 2;

// The first place whose value is not below `wanted`, in numbers that rise.
function place(numbers, wanted, from = 0, to = numbers.length) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (numbers[middle] < wanted) from = middle + 1; else to = middle;
  }
  return from;
}

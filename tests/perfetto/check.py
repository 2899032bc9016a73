#!/usr/bin/env python3
"""Checks a trace of `nvcap export perfetto` by the protobuf bindings of PyPI's `perfetto` package.

    check.py FILE [--whole] [--slices]

Reads the file as a trace processor does: packets by time, in the order of the file where times are equal. Ends with an error
at the first thing that is wrong, and prints sums as one JSON object. docs/perfetto.md has the same checks as SQL.
"""

import argparse
import collections
import json
import sys

from google.protobuf import unknown_fields
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

MONOTONIC = proto.BUILTIN_CLOCK_MONOTONIC
EVENT = proto.TrackEvent
CLEARED = proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
NEEDS = proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE


def fail(why):
    sys.exit(f"{sys.argv[1]}: {why}")


def known(message, where):
    """Every field that is set is one of Perfetto's."""
    strange = [f.field_number for f in unknown_fields.UnknownFieldSet(message)]
    if strange:
        fail(f"{where} has fields that Perfetto does not know: {strange}")
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for part in value if field.is_repeated else [value]:
            known(part, f"{where}.{field.name}")


class Sequence:
    """What the packets of the one sequence rest on."""

    def __init__(self):
        self.texts = None
        self.clock = None

    def take(self, packet, at):
        if packet.trusted_packet_sequence_id == 0:
            fail(f"packet {at} is of no sequence")
        if packet.sequence_flags & CLEARED:
            self.texts = collections.defaultdict(dict)
            self.clock = packet.trace_packet_defaults.timestamp_clock_id
            if self.clock != MONOTONIC:
                fail(f"packet {at}: times are of clock {self.clock}, not of CLOCK_MONOTONIC")
        if packet.sequence_flags & NEEDS and self.texts is None:
            fail(f"packet {at} needs texts that were never given")
        data = packet.interned_data
        for kind in ("event_categories", "event_names", "debug_annotation_names"):
            for text in getattr(data, kind):
                self.texts[kind][text.iid] = text.name
        for text in data.debug_annotation_string_values:
            self.texts["values"][text.iid] = text.str.decode()

    def text(self, kind, iid, at):
        text = self.texts[kind].get(iid)
        if text is None:
            fail(f"packet {at} names {kind} {iid}, which was not given")
        return text

    def value(self, note, at):
        kind = [f.name for f, _ in note.ListFields() if f.name != "name_iid"]
        if kind == ["string_value_iid"]:
            return self.text("values", note.string_value_iid, at)
        if kind == ["array_values"]:
            return [v.string_value for v in note.array_values]
        if kind == []:
            return []
        if len(kind) != 1:
            fail(f"packet {at}: a note has {kind}")
        return getattr(note, kind[0])


Event = collections.namedtuple("Event", "time type track name category notes begins ends value")


def read(path):
    """Descriptions of tracks, events in the order of time, and the clocks."""
    trace = proto.Trace()
    with open(path, "rb") as file:
        trace.ParseFromString(file.read())
    known(trace, "trace")
    sequence, tracks, events, clocks = Sequence(), {}, [], None
    for at, packet in enumerate(trace.packet):
        sequence.take(packet, at)
        kind = packet.WhichOneof("data")
        if kind == "clock_snapshot":
            clocks = packet.clock_snapshot
        elif kind == "track_descriptor":
            described(tracks, packet.track_descriptor, at)
        elif kind == "track_event":
            if clocks is None:
                fail(f"packet {at} has a time, and no clock was shown before")
            events.append(event(sequence, packet, at))
        elif kind is not None:
            fail(f"packet {at} is a {kind}")
        if kind == "track_event" and packet.track_event.track_uuid not in tracks:
            fail(f"packet {at} is on track {packet.track_event.track_uuid}, which was not described")
    order = [e.time for e in events]
    late = max((max(0, before - e) for before, e in zip(running_max(order), order)), default=0)
    return tracks, sorted(events, key=lambda e: e.time), clocks, late, len(trace.packet)


def running_max(times):
    most = 0
    for time in times:
        most = max(most, time)
        yield most


def described(tracks, track, at):
    before = tracks.get(track.uuid)
    if track.uuid == 0:
        fail(f"packet {at} describes the track 0")
    if track.HasField("parent_uuid") and track.parent_uuid not in tracks:
        fail(f"packet {at}: the parent of {track.name!r} was not described before it")
    if before is not None and before.parent_uuid != track.parent_uuid:
        fail(f"packet {at}: {track.name!r} has another parent than before")
    tracks[track.uuid] = track


def event(sequence, packet, at):
    e = packet.track_event
    if e.type not in (EVENT.TYPE_SLICE_BEGIN, EVENT.TYPE_SLICE_END, EVENT.TYPE_INSTANT, EVENT.TYPE_COUNTER):
        fail(f"packet {at} has the type {e.type}")
    named = e.type in (EVENT.TYPE_SLICE_BEGIN, EVENT.TYPE_INSTANT)
    if named != (e.name_iid != 0):
        fail(f"packet {at} of type {e.type} has the name {e.name_iid}")
    notes = {}
    for note in e.debug_annotations:
        name = sequence.text("debug_annotation_names", note.name_iid, at)
        if name in notes:
            fail(f"packet {at} has {name} twice")
        notes[name] = sequence.value(note, at)
    return Event(
        packet.timestamp,
        e.type,
        e.track_uuid,
        sequence.text("event_names", e.name_iid, at) if named else None,
        [sequence.text("event_categories", iid, at) for iid in e.category_iids],
        notes,
        list(e.flow_ids),
        list(e.terminating_flow_ids),
        e.counter_value if e.type == EVENT.TYPE_COUNTER else None,
    )


def path_of(tracks, uuid):
    """The names from the top to a track."""
    names = []
    while uuid:
        track = tracks[uuid]
        if track.HasField("process"):
            names.append(f"process {track.process.pid}")
        elif track.HasField("thread"):
            names.append(f"thread {track.thread.tid}")
        else:
            names.append(track.name)
        uuid = track.parent_uuid
    return names[::-1]


def check_tracks(tracks):
    """GPU > process > engine > channel, and process > thread."""
    processes = collections.Counter()
    for uuid, track in tracks.items():
        path = path_of(tracks, uuid)
        if track.HasField("process"):
            processes[track.process.pid] += 1
            if track.process.pid <= 0 or track.parent_uuid:
                fail(f"{path} is no process")
        if track.HasField("thread"):
            parent = tracks[track.parent_uuid]
            if parent.process.pid != track.thread.pid or track.thread.tid <= 0:
                fail(f"{path} is no thread of its process")
        if track.name.startswith("channel") and not track.HasField("counter"):
            if len(path) != 4 or not path[0].startswith("gpu"):
                fail(f"{path} is not GPU > process > engine > channel")
        if track.HasField("counter") and not track.parent_uuid:
            fail(f"{path} is a counter of nothing")
    return processes


def check_slices(tracks, events):
    """Ends are those of the last slice that began on the track; returns slices as (event, end)."""
    open_slices, slices = collections.defaultdict(list), []
    for e in events:
        counter = tracks[e.track].HasField("counter")
        if counter != (e.type == EVENT.TYPE_COUNTER):
            fail(f"an event of type {e.type} on {path_of(tracks, e.track)}")
        if e.type == EVENT.TYPE_SLICE_BEGIN:
            if open_slices[e.track]:
                other = open_slices[e.track][-1]
                fail(f"{e.name} at {e.time} begins in {other.name} at {other.time} on {path_of(tracks, e.track)}")
            open_slices[e.track].append(e)
        elif e.type == EVENT.TYPE_SLICE_END:
            if not open_slices[e.track]:
                fail(f"an end at {e.time} of nothing on {path_of(tracks, e.track)}")
            begin = open_slices[e.track].pop()
            wanted = begin.notes.get("duration_ns", begin.notes.get("waited_ns"))
            if wanted != e.time - begin.time:
                fail(f"{begin.name} at {begin.time} lasts {e.time - begin.time}, and says {wanted}")
            slices.append((begin, e.time))
    for track, left in open_slices.items():
        if left:
            fail(f"{left[-1].name} on {path_of(tracks, track)} has no end")
    return slices


def check_arrows(tracks, events):
    """Each arrow has one begin and one end, and leads forward; returns (from, to)."""
    begins, arrows = {}, []
    for e in events:
        # As trace processor binds them: an end must find its begin.
        for flow in e.begins:
            if flow in begins:
                fail(f"arrow {flow} begins twice")
            begins[flow] = e
        for flow in e.ends:
            begin = begins.get(flow)
            if begin is None:
                fail(f"arrow {flow} ends at {e.name} at {e.time} before it begins")
            if any(to is e and begin is of for of, to in arrows[-4:]):
                fail(f"arrow {flow} ends twice")
            arrows.append((begin, e))
            begins[flow] = begin
    ended = collections.Counter(flow for e in events for flow in e.ends)
    if set(ended) != set(begins) or any(n != 1 for n in ended.values()):
        fail("an arrow has no end, or several")
    for begin, end in arrows:
        if begin.name in ("doorbell", "submission seen"):
            if begin.notes["submission"] != end.notes["submission"]:
                fail(f"an arrow leads from submission {begin.notes['submission']} to {end.notes['submission']}")
            if tracks[begin.track].name.startswith("channel"):
                fail("an arrow of a doorbell begins on a channel")
        elif begin.name == "release":
            if "wait" not in end.category or begin.track == end.track:
                fail(f"an arrow leads from a release to {end.name} on {path_of(tracks, end.track)}")
        else:
            fail(f"an arrow begins at {begin.name}")
    return arrows


def check_counters(tracks, events, complete):
    """Values change, are never negative, and what counts things that end is 0 at the end."""
    last, values = {}, collections.Counter()
    for e in events:
        if e.type != EVENT.TYPE_COUNTER:
            continue
        if e.value < 0:
            fail(f"{path_of(tracks, e.track)} is {e.value} at {e.time}")
        before = last.get(e.track)
        name = tracks[e.track].name
        if name.endswith("bytes moved") and before is not None and e.value <= before:
            fail(f"{path_of(tracks, e.track)} goes from {before} to {e.value}")
        last[e.track] = e.value
        values[name.split()[-1]] += 1
    for track, value in last.items():
        name = tracks[track].name
        if complete and value != 0 and (name == "busy" or name.endswith("queue depth")):
            fail(f"{path_of(tracks, track)} is {value} at the end")
    return values


def check_busy(tracks, events, slices):
    """The counter of a GPU is the number of slices with work at each time."""
    for uuid, track in tracks.items():
        if track.name != "busy":
            continue
        changes = collections.Counter()
        for begin, end in slices:
            if "wait" not in begin.category and path_of(tracks, begin.track)[0] == tracks[track.parent_uuid].name:
                changes[begin.time] += 1
                changes[end] -= 1
        value, told = 0, {e.time: e.value for e in events if e.track == uuid}
        for time in sorted(changes):
            value += changes[time]
            if changes[time] and told.get(time) != value:
                fail(f"{value} work at {time}, and the counter says {told.get(time)}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--whole", action="store_true", help="every entry with a time has a slice: no filter, no late entry")
    parser.add_argument("--slices", action="store_true", help="the sums also have each slice: its track, kind, name, begin, duration and arguments")
    options = parser.parse_args()
    tracks, events, clocks, late, packets = read(options.file)
    if clocks is None or clocks.primary_trace_clock != MONOTONIC:
        fail("no clock, or another than CLOCK_MONOTONIC, is the trace's")
    if MONOTONIC not in [c.clock_id for c in clocks.clocks]:
        fail("what CLOCK_MONOTONIC showed is not given")
    processes = check_tracks(tracks)
    slices = check_slices(tracks, events)
    arrows = check_arrows(tracks, events)
    ledgers = [e for e in events if e.category == ["ledger"]]
    if len(ledgers) != 1 or "verdict" not in ledgers[0].notes:
        fail(f"{len(ledgers)} ledgers")
    values = check_counters(tracks, events, True)
    if options.whole:
        check_busy(tracks, events, slices)
    kinds = collections.Counter(e.category[0] for e in events if e.category)
    names = collections.Counter(e.name for e in events if e.category and e.category[0] not in ("submission", "ledger"))
    rows = collections.Counter()
    for uuid, track in tracks.items():
        if track.name.startswith("channel") and not track.HasField("counter"):
            rows[tuple(path_of(tracks, uuid))] += 1
    each = [
        {"track": path_of(tracks, e.track), "kind": e.category[0], "name": e.name, "begin": e.time, "duration": end - e.time, "args": e.notes}
        for e, end in slices
    ]
    json.dump(
        {
            **({"each": each} if options.slices else {}),
            "packets": packets,
            "slices": len(slices),
            "instants": sum(e.type == EVENT.TYPE_INSTANT for e in events),
            "arrows": dict(collections.Counter(a.name for a, _ in arrows)),
            "kinds": kinds,
            "names": dict(names.most_common(30)),
            "counters": values,
            "clocks": len(clocks.clocks),
            "tracks": len(tracks),
            "processes": len(processes),
            "rows": max(rows.values(), default=0),
            "channels": len(rows),
            "out_of_order_ns": late,
            "ledger": ledgers[0].notes,
        },
        sys.stdout,
        indent=1,
    )
    print()


main()

-- A Wireshark dissector for the packets of nvcap's recordings; written by `nvcap wireshark install`, which writes it anew.
--
-- It takes packets of the link type USER0 that begin with `nvcp`, and leaves others to whoever had that link type before.
-- The layout is in nvcap's docs/file-format.md and docs/nvcap.proto. Methods and operations are not decoded here: nvcap has put
-- what it says of them into the packets (`nvcap export wireshark`, or live capture). Works with Lua 5.1 to 5.4.

local nvcap = Proto("nvcap", "NVIDIA GPU submissions (nvcap)")

local floor, byte = math.floor, string.byte

-- Protocol fields ---------------------------------------------------------------------------------------------------------

-- Types: n number, x number in hex, w the same of 32 bits, i and z signed numbers (plain and zigzag), d floating point, b truth, t text, h bytes.
local kinds_of_field = {
    n = function(abbreviation, name) return ProtoField.uint64(abbreviation, name, base.DEC) end,
    x = function(abbreviation, name) return ProtoField.uint64(abbreviation, name, base.HEX) end,
    w = function(abbreviation, name) return ProtoField.uint32(abbreviation, name, base.HEX) end,
    i = function(abbreviation, name) return ProtoField.int32(abbreviation, name, base.DEC) end,
    z = function(abbreviation, name) return ProtoField.int32(abbreviation, name, base.DEC) end,
    d = function(abbreviation, name) return ProtoField.double(abbreviation, name) end,
    b = function(abbreviation, name) return ProtoField.bool(abbreviation, name) end,
    t = function(abbreviation, name) return ProtoField.string(abbreviation, name) end,
    h = function(abbreviation, name) return ProtoField.bytes(abbreviation, name) end,
}

local all_fields, fields, types = {}, {}, {}

local function declare(key, kind, name)
    if fields[key] == nil then
        name = name or (key:match("[^.]+$"):gsub("_", " "))
        fields[key] = kinds_of_field[kind]("nvcap." .. key, name)
        types[key] = kind
        all_fields[#all_fields + 1] = fields[key]
    end
end

-- The messages of docs/nvcap.proto: number, key, and type or message. A key with a dot before it is that of a field that
-- several messages have.
local schema = {
    At = { { 1, ".time_ns", "n" }, { 2, ".pid", "n" }, { 3, ".tid", "n" } },
    Bytes = { { 1, "data", "h" }, { 2, "full_len", "n" } },
    Device = { { 1, "file", "t" }, { 2, "major", "n" }, { 3, "minor", "n" } },
    Nested = { { 1, "address", "x" }, { 2, "input", "Bytes" }, { 3, "output", "Bytes" } },
    Ioctl = {
        { 1, "at", "At" }, { 2, "end_ns", "n" }, { 3, "device", "Device" }, { 4, "fd", "i" }, { 5, "file", "x" },
        { 6, "named_file", "x" }, { 7, "request", "w" }, { 8, "result", "z" }, { 9, "input", "Bytes" },
        { 10, "output", "Bytes" }, { 11, "nested", "Nested" },
    },
    Mapping = {
        { 1, "at", "At" }, { 2, "device", "Device" }, { 3, "fd", "i" }, { 4, "file", "x" }, { 5, "start", "x" },
        { 6, "len", "n" }, { 7, "read", "b" }, { 8, "write", "b" }, { 9, "found", "b" },
    },
    Unmapping = { { 1, "at", "At" }, { 2, "start", "x" }, { 3, "len", "n" } },
    Process = {
        { 1, "at", "At" }, { 2, "present", "t" }, { 3, "fork", "n" }, { 4, "thread", "n" }, { 5, "exec", "t" },
        { 6, "exit", "b" }, { 7, "identity", "Identity" },
    },
    Identity = {
        { 1, "comm", "t" }, { 2, "inner_pid", "n" }, { 3, "uid", "n" }, { 4, "user", "t" }, { 5, "cgroup", "t" },
        { 6, "container", "Container" }, { 7, "pod", "Pod" }, { 8, "gpus", "UsedGpu" },
    },
    Container = { { 1, "id", "t" }, { 2, "runtime", "t" }, { 3, "name", "t" } },
    Pod = { { 1, "uid", "t" }, { 2, "qos", "t" }, { 3, "name", "t" }, { 4, "namespace", "t" } },
    UsedGpu = { { 1, "minor", "n" }, { 2, "uuid", "t" } },
    Handle = { { 1, "client", "w" }, { 2, "object", "w" } },
    Channel = {
        { 1, "at", "At" }, { 2, ".channel", "n" }, { 3, ".gpu", "n" }, { 4, ".token", "w" }, { 5, "class", "w" },
        { 6, "engine", "n" }, { 7, "handle", "Handle" }, { 8, "ring_gpu", "x" }, { 9, "ring", "x" },
        { 10, "entries", "n" }, { 11, "userd", "x" }, { 12, "origin", "t" },
    },
    Hole = { { 1, "offset", "n" }, { 2, "len", "n" } },
    Segment = { { 1, "raw", "x" }, { 2, "data", "h" }, { 3, "hole", "Hole" } },
    Submission = {
        { 1, "at", "At" }, { 2, ".channel", "n" }, { 3, ".token", "w" }, { 4, "position", "n" }, { 5, "gp_get", "n" },
        { 6, "prev_put", "n" }, { 7, "gp_put", "n" }, { 8, "ip", "x" }, { 9, "doorbell", "x" }, { 10, "how", "t" },
        { 11, "late", "b" }, { 12, ".thread", "t" }, { 13, "entry", "Segment" }, { 14, "absent_before_ns", "n" },
    },
    Gpu = { { 1, "at", "At" }, { 2, ".gpu", "n" }, { 3, "pci_device", "w" } },
    Image = { { 1, "at", "At" }, { 2, "address", "x" }, { 3, "bytes", "h" }, { 4, "found", "x" } },
    KernelParam = { { 1, "offset", "n" }, { 2, "size", "n" } },
    KernelParams = { { 1, "param", "KernelParam" } },
    Kernel = {
        { 1, "at", "At" }, { 2, "program", "x" }, { 3, "name", "t" }, { 4, "bytes", "n" }, { 5, "params", "KernelParams" },
        { 6, "by", "t" }, { 7, "certain", "b" }, { 8, "driver", "b" }, { 9, "variable", "Variable" },
    },
    Variable = { { 1, "name", "t" }, { 2, "bytes", "n" }, { 3, "constant", "b" } },
    Frame = {
        { 1, "module", "t" }, { 2, "symbol", "t" }, { 3, "offset", "n" }, { 4, "address", "x" }, { 5, "file", "t" },
        { 6, "line", "n" }, { 7, "python", "b" }, { 8, "inlined", "b" },
    },
    Stack = { { 1, "at", "At" }, { 2, "calls", "n" } },
    Stamp = {
        { 1, "address", "x" }, { 2, "payload", "n" }, { 3, "gpu_ns", "n" }, { 4, "before_ns", "n" }, { 5, "seen_ns", "n" },
    },
    Stamps = { { 1, "at", "At" }, { 2, "from_ns", "n" }, { 3, "reads", "n" }, { 4, "stamp", "Stamp" } },
    LostEntries = { { 1, "position", "n" }, { 2, "count", "n" } },
    LostRecords = { { 1, "kind", "t" }, { 2, "count", "n" } },
    LostDoorbells = { { 1, ".token", "w" }, { 2, "count", "n" } },
    Loss = {
        { 1, "at", "At" }, { 2, ".channel", "n" }, { 3, "entries", "LostEntries" }, { 4, "records", "LostRecords" },
        { 5, "unknown_channel", "LostDoorbells" }, { 6, "stacks", "n" }, { 7, "untraced", "t" },
        { 8, "notifiers", "n" },
    },
    Calls = { { 1, "number", "n" }, { 2, "frame", "Frame" }, { 3, "api", "t" }, { 4, "end", "t" } },
    Idle = {},
    Continued = {},
    Trace = {
        { 1, "program", "t" }, { 2, "driver", "t" }, { 3, "kernel", "t" }, { 4, "processor", "t" },
        { 5, "monotonic_ns", "n" }, { 6, "realtime_ns", "n" }, { 7, "how", "t" }, { 8, "gpu_time", "b" },
        { 9, "stacks", "b" }, { 10, "in_order", "b" }, { 11, "redacted", "b" }, { 12, "command", "t" }, { 13, "file", "n" },
        { 14, "left_out", "n" }, { 15, "gpu", "HostGpu" }, { 16, "first", "n" },
    },
    HostGpu = { { 1, "minor", "n" }, { 2, "model", "t" }, { 3, "uuid", "t" }, { 4, "bus", "t" } },
    Margin = {
        { 1, "channel", "n" }, { 2, "looks", "n" }, { 3, "peeks", "n" }, { 4, "longest_ns", "n" }, { 5, "largest_part", "d" },
    },
    ReaderCost = { { 1, "channels", "n" }, { 2, "cpu_ns", "n" } },
    Observed = {
        { 1, "looks", "n" }, { 2, "peeks", "n" }, { 3, "longest_ns", "n" }, { 4, "largest_part", "d" },
        { 5, "latest_ns", "n" }, { 6, "longest_look_ns", "n" }, { 7, "longest_search_ns", "n" }, { 8, "margin", "Margin" },
        { 9, "tail_ns", "n" }, { 10, "wall_ns", "n" }, { 11, "cpu_ns", "n" }, { 12, "reader_ns", "n" }, { 13, "budget", "d" },
        { 14, "throttled_ns", "n" }, { 15, "laps", "n" }, { 16, "rounds_unseen", "n" }, { 17, "overwritten", "n" },
        { 18, "reused", "n" }, { 19, "unparsable", "n" }, { 20, "jumps", "n" },
        { 21, "reader", "ReaderCost" },
    },
    StackSample = { { 1, "every", "n" }, { 2, "passed", "n" } },
    Passed = {
        { 1, "at", "At" }, { 2, ".channel", "n" }, { 3, "position", "n" }, { 4, "entries", "n" }, { 5, "doorbells", "n" },
        { 6, "why", "t" },
    },
    Trapped = {
        { 1, "hits", "n" }, { 2, "runs", "n" }, { 3, "before", "n" }, { 4, "deferred", "n" }, { 5, "put_off", "n" },
        { 6, "counted", "n" }, { 7, "duty", "Duty" }, { 8, "stray_traps", "n" },
    },
    Duty = {
        { 1, "windows", "n" }, { 2, "watched_ns", "n" }, { 3, "all_ns", "n" }, { 4, "submissions", "d" },
        { 5, "submissions_margin", "d" }, { 6, "bytes", "d" }, { 7, "bytes_margin", "d" }, { 8, "entries", "n" },
        { 9, "doubtful", "n" },
    },
    GpuClock = { { 1, "pid", "n" }, { 2, "address", "x" }, { 3, "gpu_ns", "n" }, { 4, "before_ns", "n" }, { 5, "seen_ns", "n" } },
    LeftOutOfStacks = { { 1, "what", "t" }, { 2, "count", "n" } },
    End = {
        { 1, "time_ns", "n" }, { 2, "observed", "Observed" }, { 3, "stack_sample", "StackSample" }, { 4, "unwritten", "n" },
        { 5, "gpu_clock", "GpuClock" }, { 6, "trapped", "Trapped" },
        { 7, "left_out_of_stacks", "LeftOutOfStacks" },
    },
    MemoryRange = { { 1, "start", "x" }, { 2, "len", "n" } },
    LookChannel = {
        { 1, "channel", "n" }, { 2, "gp_get", "n" }, { 3, "gp_put", "n" }, { 4, "ring", "x" }, { 5, "userd", "x" },
        { 6, "place", "t" }, { 7, "size", "t" }, { 8, "target", "t" }, { 9, "moved", "b" }, { 10, "token_from", "t" },
        { 11, "error", "n" }, { 12, "overwritten", "n" }, { 13, "recycled", "n" }, { 14, "unreadable", "n" },
        { 15, "elsewhere", "n" }, { 16, "ring_gone", "b" }, { 17, "first", "Submission" },
    },
    NativeStack = { { 1, "frames", "Frame" }, { 2, "end", "t" } },
    PythonFrame = { { 1, "function", "t" }, { 2, "file", "t" }, { 3, "line", "n" } },
    PythonStack = { { 1, "frames", "PythonFrame" }, { 2, "newest_missing", "b" }, { 3, "oldest_missing", "b" } },
    LookThread = {
        { 1, "tid", "n" }, { 2, "name", "t" }, { 3, "state", "t" }, { 4, "ticks", "n" }, { 5, "wchan", "t" },
        { 6, "syscall", "n" }, { 7, "argument", "n" }, { 8, "native", "NativeStack" }, { 9, "python", "PythonStack" },
    },
    Xid = {
        { 1, "time_ns", "n" }, { 2, "pci", "t" }, { 3, "gpu", "n" }, { 4, "code", "n" }, { 5, "pid", "n" }, { 6, "name", "t" },
        { 7, "hardware_channel", "n" }, { 8, "channels", "n" }, { 9, "text", "t" }, { 10, "gpu_instance", "n" },
        { 11, "compute_instance", "n" },
    },
    Fault = {
        { 1, "at", "At" }, { 2, "source", "t" }, { 3, "code", "n" }, { 4, ".channel", "n" }, { 5, "assumed", "b" },
        { 6, ".token", "w" }, { 7, "notification", "Notification" }, { 8, "message", "Xid" }, { 9, "suspects", "Suspect" },
        { 10, "only_these", "b" }, { 11, "group", "n" },
    },
    Notification = { { 1, "time", "n" }, { 2, "info32", "n" }, { 3, "info16", "n" }, { 4, "status", "n" } },
    Suspect = {
        { 1, "channel", "n" }, { 2, "index", "n" }, { 3, "kind", "t" }, { 4, "program", "x" }, { 5, "grid", "n" },
        { 6, "block", "n" }, { 7, "near", "Near" },
    },
    Samples = {
        { 1, "at", "At" }, { 2, "from_ns", "n" }, { 3, ".gpu", "n" }, { 4, "client", "w" }, { 5, "channel_group", "w" },
        { 6, "period", "n" }, { 7, "sms", "h" }, { 8, "pc", "h" }, { 9, "samples", "h" }, { 10, "not_issued", "h" },
        { 11, "reasons", "h" }, { 12, "reason", "h" }, { 13, "reason_samples", "h" }, { 14, "others", "n" },
        { 15, "overflows", "n" }, { 16, "bytes", "n" }, { 17, "cut_bytes", "n" }, { 18, "strange_bytes", "n" },
        { 19, "ended", "b" },
    },
    Switches = {
        { 1, "at", "At" }, { 2, ".gpu", "n" }, { 3, "own_user_alone", "b" }, { 4, "from", "ClockReading" },
        { 5, "to", "ClockReading" }, { 6, "tag", "h" }, { 7, "time_ns", "h" }, { 8, "context", "h" }, { 9, "pid", "h" },
        { 10, "sequence", "h" }, { 11, "vmid", "h" }, { 12, "instance", "h" }, { 13, "between", "Between" },
        { 14, "processes", "Holder" },
    },
    ClockReading = { { 1, "host_ns", "n" }, { 2, "gpu_ns", "n" }, { 3, "error_ns", "n" } },
    Between = { { 1, "behind", "n" }, { 2, "missing", "n" }, { 3, "strange", "b" }, { 4, "ended", "Ended" } },
    Ended = { { 1, "pid", "n" }, { 2, "by_ns", "n" } },
    Holder = { { 1, "pid", "n" }, { 2, "identity", "Identity" } },
    Near = { { 1, "offset", "n" }, { 2, "value", "x" } },
    Look = {
        { 1, "at", "At" }, { 2, "took_ns", "n" }, { 3, "finding_ns", "n" }, { 4, "reading_ns", "n" }, { 5, "rank", "n" },
        { 6, "python", "t" }, { 7, "unused", "n" }, { 8, "notes", "t" }, { 9, "memory", "MemoryRange" },
        { 10, "channels", "LookChannel" }, { 11, "threads", "LookThread" }, { 12, "xids", "Xid" },
        { 13, "ranks", "n" },
    },
    -- What nvcap's decoder says: field 100 of the others.
    Decoded = {
        { 1, ".serial", "n" }, { 2, ".text", "t" }, { 3, ".gpu", "n" }, { 4, ".token", "w" }, { 5, ".engine", "t" },
        { 6, ".thread", "t" }, { 7, ".api", "t" }, { 8, "operation", "Operation" }, { 9, "method", "Method" },
        { 10, "stop", "Stop" }, { 11, "class", "Class" },
    },
}
local DECODED = 100

-- Messages that are decoded by number of kind.
local kinds = {
    [0] = "Trace", "Ioctl", "Mapping", "Unmapping", "Process", "Channel", "Submission", "Gpu", "Image", "Kernel", "Stack",
    "Stamps", "Loss", "Calls", "Idle", "End", "Continued",
    "Look", "Passed", "Fault", "Samples", "Switches",
}

local function key_of(message, key)
    return key:match("^%.(.*)") or message:lower() .. "." .. key
end

local by_number = {}
for message, list in pairs(schema) do
    by_number[message] = {}
    for _, definition in ipairs(list) do
        local number, key, kind = definition[1], definition[2], definition[3]
        local full = key_of(message, key)
        by_number[message][number] = { key = full, kind = kind, title = key:gsub("_", " ") }
        if kinds_of_field[kind] and message ~= "Decoded" then
            declare(full, kind)
        end
    end
end
for key, kind in pairs({
    kind = "t", trace = "w", number = "n", part = "n", parts = "n", again = "b", sum = "w", version = "n",
    text = "t", op = "t", kernel = "t", serial = "n", engine = "t", thread = "t", api = "t", process = "t",
    method = "t", ["method.class"] = "w", ["method.class_name"] = "t", ["method.address"] = "w", ["method.data"] = "w",
    ["method.subchannel"] = "n", ["method.words"] = "n", ["method.masked"] = "b", field = "t", stop = "t", value = "t",
    ["entry.index"] = "n", ["entry.bytes"] = "n", ["submission.entries"] = "n", ["submission.bytes"] = "n",
}) do
    declare(key, kind)
end

-- Values of operations: named as in nvcap's JSON. `kernel` and those of the GPU's time are the same for all operations.
local values = {
    gpu_start_ns = "n", gpu_start_error_ns = "n", gpu_clock_start_ns = "n", gpu_clock_error_ns = "n", gpu_start_by = "t", gpu_ns = "n",
    gpu_ns_error = "n", gpu_ns_by = "t", queued_ns = "n", queued_least_ns = "n", queued_most_ns = "n", queued_by = "t",
    gpu_works = "n", gpu_works_ns = "n", gpu_works_exec_ns = "n", gpu_launch_ns = "n", gpu_launch_error_ns = "n", gpu_exec_ns = "n",
    gpu_exec_ns_error = "n", preempted_ns = "n",
}
for key, kind in pairs(values) do
    declare(key, kind)
end
local memory = { place = "t", client = "w", handle = "w", class = "w", size = "n", offset = "n", cpu = "x" }
local operations = {
    launch = {
        kind = "t", how = "t", pcas = "t", ["pcas.other"] = "n", replay = "n", place = "n", qmd = "x", qmd_version = "t",
        qmd_from = "t", grid = "t", ["grid.x"] = "n", ["grid.y"] = "n", ["grid.z"] = "n", block = "t", ["block.x"] = "n",
        ["block.y"] = "n", ["block.z"] = "n", cluster = "t", ["cluster.x"] = "n", ["cluster.y"] = "n", ["cluster.z"] = "n",
        cooperative = "b", registers = "n", shared_bytes = "n", shared_reserved_bytes = "n", local_bytes = "n",
        barriers = "n", program = "x", stand_in = "x", program_bytes = "n", kernel_mangled = "t", kernel_from = "t", kernel_certain = "b",
        ["moves.dst"] = "x", ["moves.src"] = "x", ["moves.bytes"] = "n", ["moves.value"] = "w", args = "t",
        ["arguments.offset"] = "n", ["arguments.size"] = "n", ["arguments.type"] = "t", ["arguments.value"] = "t",
        ["arguments.memory"] = memory, ["constant_banks.index"] = "n", ["constant_banks.address"] = "x",
        ["constant_banks.size"] = "n", ["releases.address"] = "x", ["releases.payload"] = "n", dependent = "x",
    },
    graph = {
        replay = "n", nodes = "n", kernels = "n", memsets = "n", copies = "n", driver = "n", unresolved = "n",
        channels = "t", submissions = "t", bytes = "n", uploaded = "b", conditional = "b",
    },
    copy = {
        bytes = "n", src = "x", dst = "x", src_memory = memory, dst_memory = memory, physical = "t", mode = "t",
        engine = "t", direction = "t", direction_from = "t", line_bytes = "n", lines = "n", pitch = "t", pattern = "t",
        ["semaphore.address"] = "x", ["semaphore.payload"] = "n", ["semaphore.timestamp"] = "b", launch_dma = "w",
    },
    inline = {
        dst = "x", dst_memory = memory, bytes = "n", line_bytes = "n", lines = "n", content = "t", data = "t", fill = "w",
        src = "x", src_memory = memory, direction = "t", head = "t",
    },
    load = {
        part_of = "t", entries = "n", code_bytes = "n", code_writes = "n", data_bytes = "n", data_writes = "n",
        variables = "n", constant_banks = "n", functions = "n", kernels = "t",
        ["symbols.name"] = "t", ["symbols.bytes"] = "n", ["symbols.constant"] = "b",
    },
    semaphore = {
        unit = "t", action = "t", ["action.other"] = "n", address = "x", payload = "n", wide = "b", timestamp = "b",
        reduction = "t", wait_for_idle = "b", execute = "w",
    },
    barrier = { what = "t", class = "w", method = "w", data = "w", address = "x" },
    bind = { subchannel = "n", class = "w" },
    draw = { what = "t", class = "w", method = "w", data = "w", count = "n" },
    video = { what = "t", class = "w", data = "w" },
    host = { what = "t", data = "w" },
}
for op, list in pairs(operations) do
    for key, kind in pairs(list) do
        if type(kind) == "table" then
            for member, of in pairs(kind) do
                declare(op .. "." .. key .. "." .. member, of)
            end
        else
            declare(op .. "." .. key, kind)
        end
    end
end
nvcap.fields = all_fields

local function expert_of(name, text, group, severity)
    return ProtoExpert.new("nvcap.expert." .. name, text, group, severity)
end
local experts = {
    lost = expert_of("lost", "Something was lost", expert.group.SEQUENCE, expert.severity.ERROR),
    missing = expert_of("missing", "Packets are missing from the file", expert.group.SEQUENCE, expert.severity.WARN),
    hole = expert_of("hole", "Bytes could not be read", expert.group.SEQUENCE, expert.severity.WARN),
    late = expert_of("late", "Fetched later than at its own doorbell", expert.group.SEQUENCE, expert.severity.NOTE),
    stop = expert_of("stop", "Not decoded to its end", expert.group.UNDECODED, expert.severity.WARN),
    parts = expert_of("parts", "Parts of the record are missing", expert.group.REASSEMBLE, expert.severity.WARN),
    damaged = expert_of("damaged", "The packet is damaged", expert.group.PROTOCOL, expert.severity.ERROR),
    raw = expert_of("raw", "Not decoded", expert.group.COMMENTS_GROUP, expert.severity.COMMENT),
}
local all_experts = {}
for _, one in pairs(experts) do
    all_experts[#all_experts + 1] = one
end
nvcap.experts = all_experts

-- Protobuf ----------------------------------------------------------------------------------------------------------------

-- The varint at `at`: the place behind it, and its lower and upper 32 bits. Numbers of Lua hold 53 bits.
local function varint(s, at, to)
    local low, high = 0, 0
    for i = 0, 9 do
        local b = at <= to and byte(s, at)
        if not b then
            error("a number is cut", 0)
        end
        at = at + 1
        local bits = b % 128
        if i < 4 then
            low = low + bits * 2 ^ (7 * i)
        elseif i == 4 then
            low = low + (bits % 16) * 2 ^ 28
            high = floor(bits / 16)
        elseif i < 9 then
            high = high + bits * 2 ^ (7 * i - 32)
        else
            high = high + (bits % 2) * 2 ^ 31
        end
        if b < 128 then
            return at, low, high
        end
    end
    error("a number is too long", 0)
end

local function fixed(s, at)
    local a, b, c, d = byte(s, at, at + 3)
    return a + b * 2 ^ 8 + c * 2 ^ 16 + d * 2 ^ 24
end

-- The fields of the message in s[from..to], in their order: number, wire type, place, and value.
local function parse(s, from, to)
    local all, at = {}, from
    while at <= to do
        local f, key, high = { start = at }, nil, nil
        at, key, high = varint(s, at, to)
        if high ~= 0 or key < 8 then
            error("a field has no number", 0)
        end
        f.number, f.wire, f.from = floor(key / 8), key % 8, at
        if f.wire == 0 then
            at, f.low, f.high = varint(s, at, to)
        elseif f.wire == 1 then
            if at + 7 > to then
                error("a number is cut", 0)
            end
            f.low, f.high, at = fixed(s, at), fixed(s, at + 4), at + 8
        elseif f.wire == 2 then
            local len, more
            at, len, more = varint(s, at, to)
            if more ~= 0 or at + len - 1 > to then
                error("a field is cut", 0)
            end
            f.from, at = at, at + len
        else
            error("a field has an unknown type", 0)
        end
        f.to = at - 1
        all[#all + 1] = f
    end
    return all
end

local function text_of(s, f)
    return f.wire == 2 and s:sub(f.from, f.to) or ""
end

local function number_of(f)
    return f.low and f.low + f.high * 2 ^ 32 or 0
end

local function decimal(f)
    return tostring(UInt64.new(f.low or 0, f.high or 0))
end

local function hex(low, high)
    if high and high > 0 then
        return string.format("0x%x%08x", high, low)
    end
    return string.format("0x%x", low)
end

-- The fields of a message by key, those of `lists` as lists.
local function read(s, f, keys, lists)
    if f.wire ~= 2 then
        error("a message is none", 0)
    end
    local all = {}
    for _, list in pairs(lists or {}) do
        all[list] = {}
    end
    for _, one in ipairs(parse(s, f.from, f.to)) do
        local key = keys[one.number]
        if key and lists and lists[one.number] then
            local list = all[key]
            list[#list + 1] = one
        elseif key then
            all[key] = one
        end
    end
    return all
end

-- The tree ----------------------------------------------------------------------------------------------------------------

-- Bytes of a body; an empty value has the byte at its place.
local function range(body, from, to)
    local len = body:len()
    if to < from then
        from = math.min(from, len)
        to = from
    end
    return body(from - 1, to - from + 1)
end

local wires = { n = 0, x = 0, w = 0, i = 0, z = 0, b = 0, d = 1, t = 2, h = 2 }

-- Adds the value of a field; nil where it is not of the type that it must have.
local function add(tree, body, s, key, kind, f)
    local where, proto = range(body, f.from, f.to), fields[key]
    if kind == "n" or kind == "x" then
        if f.low then
            return tree:add(proto, where, UInt64.new(f.low, f.high))
        end
    elseif f.wire ~= wires[kind] then
        return nil
    elseif kind == "w" then
        return tree:add(proto, where, f.low)
    elseif kind == "t" then
        return tree:add(proto, where, text_of(s, f))
    elseif kind == "b" then
        return tree:add(proto, where, f.low ~= 0 or f.high ~= 0)
    elseif kind == "h" then
        if f.to < f.from then
            return nil
        end
        return tree:add(proto, where)
    elseif kind == "d" then
        return tree:add(proto, where, where:le_float())
    elseif kind == "i" then
        return tree:add(proto, where, f.low < 2 ^ 31 and f.low or f.low - 2 ^ 32)
    elseif kind == "z" then
        local half = floor(f.low / 2)
        return tree:add(proto, where, f.low % 2 == 0 and half or -half - 1)
    end
    return nil
end

-- Shows a message as it is; `seen` gets its values by key.
local function show(tree, body, s, message, from, to, seen, depth)
    if depth > 8 then
        error("messages are nested too deep", 0)
    end
    for _, f in ipairs(parse(s, from, to)) do
        local definition = by_number[message][f.number]
        if f.number == DECODED then
            seen.decoded = f
        elseif definition == nil then
            tree:add(range(body, f.start, f.to), string.format("field %d, which this dissector does not know", f.number))
        elseif schema[definition.kind] then
            if f.wire ~= 2 then
                error("a message is none", 0)
            end
            if message == "Submission" and definition.kind == "Segment" then
                seen.segments = seen.segments or {}
                seen.segments[#seen.segments + 1] = f
            else
                local where = range(body, f.start, f.to)
                local sub = definition.kind == "At" and tree or tree:add(where, definition.title)
                show(sub, body, s, definition.kind, f.from, f.to, seen, depth + 1)
            end
            seen[definition.key] = f
        else
            add(tree, body, s, definition.key, definition.kind, f)
            if seen[definition.key] == nil then
                seen[definition.key] = f
            end
        end
    end
end

local VALUE = { "name", "number", "text" }

-- A value of an operation, under the field of its name.
local function show_value(tree, body, s, op, f)
    local v = read(s, f, VALUE)
    local name = v.name and text_of(s, v.name) or "?"
    local key = op .. "." .. name
    if values[name] or name == "kernel" then
        key = name
    end
    local kind, shown = types[key], nil
    local one = v.number or v.text
    if one == nil then
        return
    end
    if kind == "t" and v.text == nil then
        shown = tree:add(fields[key], range(body, f.start, f.to), decimal(one))
    elseif kind and (kind == "t") == (v.text ~= nil) then
        shown = add(tree, body, s, key, kind, one)
    end
    if shown == nil then
        local text = v.text and text_of(s, v.text) or decimal(v.number)
        tree:add(fields.value, range(body, f.start, f.to), name .. "=" .. text)
    end
end

local OPERATION, OPERATION_LISTS = { "op", "text", "entry", "offset", "serial", "values" }, { [6] = "values" }

-- The bytes of a segment at an offset, where they are there.
local function words(body, segment, offset, len)
    if segment and segment.data then
        local from = segment.data.from + offset
        local to = math.min(from + len - 1, segment.data.to)
        if from <= to then
            return body(from - 1, to - from + 1)
        end
    end
    return nil
end

local function show_operation(tree, body, s, f, segments)
    local o = read(s, f, OPERATION, OPERATION_LISTS)
    local op = o.op and text_of(s, o.op) or "?"
    local segment = o.entry and segments[number_of(o.entry) + 1]
    local where = segment and words(body, segment, number_of(o.offset or { low = 0, high = 0 }), 4)
    where = where or range(body, f.start, f.to)
    local title = o.text and text_of(s, o.text) or op
    if o.serial then
        title = string.format("%s (of submission %s)", title, decimal(o.serial))
    end
    local sub = tree:add(where, title)
    sub:add(fields.op, where, op)
    if o.serial then
        add(sub, body, s, "serial", "n", o.serial)
    end
    for _, value in ipairs(o.values) do
        show_value(sub, body, s, op, value)
    end
    return op
end

local METHOD = { "entry", "offset", "subchannel", "class", "address", "name", "data", "masked", "words", "fields" }
local METHOD_LISTS = { [10] = "fields" }
local ZERO = { low = 0, high = 0 }

local function show_method(tree, body, s, m, segment, classes)
    local offset, count = number_of(m.offset or ZERO), number_of(m.words or ZERO)
    local where = words(body, segment, offset, 4 * math.max(count, 1)) or range(body, m.from, m.to)
    local address, class = m.address or ZERO, m.class or ZERO
    local name = m.name and text_of(s, m.name) or hex(address.low)
    local data = m.data or ZERO
    local title = { string.format("+0x%04x sub %s  %s", offset % 2 ^ 32, decimal(m.subchannel or ZERO), name) }
    if count > 1 then
        title[2] = string.format("x%.0f", count)
    else
        title[2] = "= " .. hex(data.low)
    end
    local members = {}
    for _, f in ipairs(m.fields) do
        local v = read(s, f, VALUE)
        local of = v.name and text_of(s, v.name) or "?"
        local value = v.text and text_of(s, v.text) or hex((v.number or ZERO).low)
        members[#members + 1] = of .. "=" .. value
        -- A field without names that is 0 is left out of the title, as in nvcap's text.
        if #m.fields > 1 and (v.text or number_of(v.number or ZERO) ~= 0) then
            title[#title + 1] = members[#members]
        end
    end
    if m.masked and m.masked.low == 1 then
        title[#title + 1] = "(skipped by the subdevice mask)"
    end
    local sub = tree:add(where, table.concat(title, " "))
    sub:add(fields.method, where, name)
    sub:add(fields["method.address"], where, address.low)
    sub:add(fields["method.class"], where, class.low)
    if classes[class.low] then
        sub:add(fields["method.class_name"], where, classes[class.low])
    end
    sub:add(fields["method.subchannel"], where, UInt64.new((m.subchannel or ZERO).low, 0))
    if count > 1 then
        sub:add(fields["method.words"], where, UInt64.new(count, 0))
    else
        sub:add(fields["method.data"], where, data.low)
    end
    if m.masked then
        add(sub, body, s, "method.masked", "b", m.masked)
    end
    for _, member in ipairs(members) do
        sub:add(fields.field, where, member)
    end
end

local DECODED_KEYS = {
    "serial", "text", "gpu", "token", "engine", "thread", "api", "operations", "methods", "stops", "classes",
}
local DECODED_LISTS = { [8] = "operations", [9] = "methods", [10] = "stops", [11] = "classes" }
local STOP = { "entry", "offset", "text" }
local CLASS = { "class", "name" }
local SEGMENT, SEGMENT_LISTS = { "raw", "data", "holes" }, { [3] = "holes" }
local HOLE = { "offset", "len" }

local function bytes(n)
    return n == 1 and "1 byte" or string.format("%.0f bytes", n)
end

local function count_of(n, one, many)
    return n == 1 and "1 " .. one or string.format("%.0f %s", n, many)
end

local function read_decoded(s, seen)
    return seen.decoded and read(s, seen.decoded, DECODED_KEYS, DECODED_LISTS)
end

-- What the decoder says of the whole of a record.
local function show_decoded(tree, body, s, decoded, seen)
    for _, key in ipairs({ "text", "serial", "gpu", "token", "engine", "thread", "api" }) do
        if decoded[key] and seen[key] == nil then
            add(tree, body, s, key, types[key], decoded[key])
            seen[key] = decoded[key]
        end
    end
end

local function show_operations(tree, body, s, decoded, segments)
    if #decoded.operations == 0 then
        return
    end
    local first, last = decoded.operations[1], decoded.operations[#decoded.operations]
    local title = count_of(#decoded.operations, "operation", "operations")
    local sub = tree:add(range(body, first.start, last.to), title)
    for _, f in ipairs(decoded.operations) do
        show_operation(sub, body, s, f, segments)
    end
end

local function show_submission(tree, body, s, seen)
    local segments, total, missing = {}, 0, 0
    for _, f in ipairs(seen.segments or {}) do
        local segment = read(s, f, SEGMENT, SEGMENT_LISTS)
        segment.start, segment.to = f.start, f.to
        segment.len = segment.data and segment.data.to - segment.data.from + 1 or 0
        total = total + segment.len
        segments[#segments + 1] = segment
    end
    local whole = body()
    tree:add(fields["submission.entries"], whole, UInt64.new(#segments, 0)):set_generated()
    tree:add(fields["submission.bytes"], whole, UInt64.new(total, 0)):set_generated()
    local decoded = read_decoded(s, seen)
    local methods, classes = {}, {}
    if decoded then
        show_decoded(tree, body, s, decoded, seen)
        show_operations(tree, body, s, decoded, segments)
        for _, f in ipairs(decoded.classes) do
            local c = read(s, f, CLASS)
            if c.class and c.name then
                classes[c.class.low] = text_of(s, c.name)
            end
        end
        for _, f in ipairs(decoded.methods) do
            local m = read(s, f, METHOD, METHOD_LISTS)
            m.from, m.to = f.start, f.to
            local entry = number_of(m.entry or ZERO)
            methods[entry] = methods[entry] or {}
            local list = methods[entry]
            list[#list + 1] = m
        end
    end
    for i, segment in ipairs(segments) do
        local where = range(body, segment.start, segment.to)
        local list = methods[i - 1] or {}
        local title = string.format("entry %d, %s", i - 1, bytes(segment.len))
        if #list > 0 then
            title = title .. ", " .. count_of(#list, "method", "methods")
        end
        local sub = tree:add(where, title)
        sub:add(fields["entry.index"], where, UInt64.new(i - 1, 0)):set_generated()
        if segment.raw then
            add(sub, body, s, "segment.raw", "x", segment.raw)
        end
        sub:add(fields["entry.bytes"], where, UInt64.new(segment.len, 0)):set_generated()
        if segment.data then
            add(sub, body, s, "segment.data", "h", segment.data)
        end
        for _, f in ipairs(segment.holes) do
            local hole = read(s, f, HOLE)
            local len = number_of(hole.len or ZERO)
            missing = missing + len
            local text = string.format("%s at offset %.0f could not be read", bytes(len), number_of(hole.offset or ZERO))
            sub:add_proto_expert_info(experts.hole, text)
        end
        for _, m in ipairs(list) do
            show_method(sub, body, s, m, segment, classes)
        end
    end
    if decoded then
        for _, f in ipairs(decoded.stops) do
            local stop = read(s, f, STOP)
            local text = stop.text and text_of(s, stop.text) or "?"
            local segment = segments[number_of(stop.entry or ZERO) + 1]
            local where = words(body, segment, number_of(stop.offset or ZERO), 4) or range(body, f.start, f.to)
            tree:add(fields.stop, where, text):add_proto_expert_info(experts.stop, text)
        end
    else
        tree:add_proto_expert_info(experts.raw, "Operations and methods are added by: nvcap export wireshark FILE -o OUT")
    end
    if seen["submission.late"] and seen["submission.late"].low == 1 then
        tree:add_proto_expert_info(experts.late)
    end
    local info = decoded and decoded.text and text_of(s, decoded.text) or ""
    if info == "" then
        info = count_of(#segments, "entry", "entries") .. ", " .. bytes(total)
    end
    if missing > 0 then
        info = info .. "; " .. bytes(missing) .. " could not be read"
    end
    return info
end

-- The line of a record that is no submission.
local infos = {
    Trace = function(t) return "trace by " .. t("trace.program") .. ", " .. t("trace.how") end,
    Mapping = function(t) return "mapping of " .. t("device.file") .. " at " .. t("mapping.start") .. ", " .. t("mapping.len") .. " bytes" end,
    Unmapping = function(t) return "unmapping at " .. t("unmapping.start") .. ", " .. t("unmapping.len") .. " bytes" end,
    Process = function(t, seen)
        for key, words in pairs({ present = "traced: ", exec = "executed ", fork = "forked process ", thread = "made thread " }) do
            if seen["process." .. key] then
                return words .. t("process." .. key)
            end
        end
        if seen["identity.comm"] then
            return "identity of " .. t("identity.comm")
        end
        local exit = seen["process.exit"]
        return exit and exit.low == 0 and "thread exited" or "exited"
    end,
    Channel = function(t, seen)
        local text = "channel " .. t("channel")
        for _, key in ipairs({ "gpu", "token", "channel.class" }) do
            if seen[key] then
                text = text .. " " .. key:match("[^.]+$") .. " " .. t(key)
            end
        end
        return text .. " (" .. t("channel.origin") .. ")"
    end,
    Gpu = function(t) return "GPU " .. t("gpu") .. ", PCI device " .. t("gpu.pci_device") end,
    Image = function(t) return "memory at " .. t("image.address") end,
    Kernel = function(t) return "program " .. t("kernel.program") .. " is " .. t("kernel.name") end,
    Stack = function(t) return "stack: calls " .. t("stack.calls") end,
    Stamps = function(t) return "time stamps of the GPU: " .. t("stamps.reads") .. " reads" end,
    Calls = function(t, seen) return "calls " .. t("calls.number") .. (seen["calls.api"] and ": " .. t("calls.api") or "") end,
    Idle = function() return "nothing more for now" end,
    End = function() return "end of the trace" end,
    Continued = function() return "goes on in another file" end,
    Look = function(t) return "a look at a process, " .. t("look.took_ns") .. " ns" end,
    Ioctl = function(t) return "ioctl " .. t("ioctl.request") end,
    Fault = function(t, seen)
        local of = seen["channel"] and " on channel " .. t("channel") or ""
        return "FAULT Xid " .. t("fault.code") .. of
    end,
    Samples = function(t) return "samples of program counters of the GPU: " .. t("samples.bytes") .. " bytes of the stream" end,
    Switches = function(t) return "context switches of GPU " .. t("gpu") end,
    Passed = function(t)
        return "passed over " .. t("passed.entries") .. " entries of channel " .. t("channel") .. " (" .. t("passed.why") .. ")"
    end,
    Loss = function(t, seen)
        if seen["loss.untraced"] then
            return "UNTRACED: " .. t("loss.untraced")
        elseif seen["lostentries.count"] then
            return "LOST " .. t("lostentries.count") .. " entries of channel " .. t("channel") .. " from position " .. t("lostentries.position")
        elseif seen["lostrecords.count"] then
            return "LOST " .. t("lostrecords.count") .. " records (" .. t("lostrecords.kind") .. ")"
        elseif seen["lostdoorbells.count"] then
            return "LOST " .. t("lostdoorbells.count") .. " doorbells of token " .. t("token")
        end
        return "LOST " .. t("loss.stacks") .. " stacks"
    end,
}

-- A value in words.
local function word(s, seen, key)
    local f, kind = seen[key], types[key]
    if f == nil then
        return (kind == "x" or kind == "w") and "0x0" or kind == "n" and "0" or "?"
    end
    if f.wire == 2 then
        return text_of(s, f)
    end
    return (kind == "x" or kind == "w") and hex(f.low, f.high) or decimal(f)
end

-- The source and destination columns: whose it is, and where it goes.
local function columns(pinfo, s, seen)
    if seen.pid then
        local thread = seen.thread and text_of(s, seen.thread)
        local pid = decimal(seen.pid)
        pinfo.cols.src = thread and thread .. "/" .. pid or pid
    end
    local where = {}
    if seen.gpu then
        where[#where + 1] = "GPU " .. decimal(seen.gpu)
    end
    if seen.channel then
        where[#where + 1] = "ch" .. decimal(seen.channel)
    end
    if seen.engine then
        where[#where + 1] = text_of(s, seen.engine)
    end
    if #where > 0 then
        pinfo.cols.dst = table.concat(where, " ")
    end
end

-- Numbers that are 0 where a message does not have them: protobuf leaves them out.
local zeros = {
    Submission = { "channel", "submission.position", "submission.prev_put", "submission.gp_put" },
    Channel = { "channel" },
    Gpu = { "gpu" },
}

local function dissect_body(message, body, s, pinfo, tree)
    local seen = {}
    if body:len() > 0 then
        show(tree, body, s, message, 1, #s, seen, 0)
    end
    local whole = body:len() > 0 and body() or nil
    for _, key in ipairs(whole and zeros[message] or {}) do
        if seen[key] == nil then
            tree:add(fields[key], whole, UInt64.new(0, 0)):set_generated()
            seen[key] = ZERO
        end
    end
    local info
    if message == "Submission" and whole then
        info = show_submission(tree, body, s, seen)
    else
        local decoded = read_decoded(s, seen)
        if decoded then
            show_decoded(tree, body, s, decoded, seen)
            show_operations(tree, body, s, decoded, {})
        end
        if decoded and decoded.text and message == "Ioctl" then
            info = text_of(s, decoded.text)
        else
            info = infos[message](function(key) return word(s, seen, key) end, seen)
        end
        if message == "Loss" then
            tree:add_proto_expert_info(experts.lost, info)
        end
    end
    columns(pinfo, s, seen)
    pinfo.cols.info = info
end

-- Packets -----------------------------------------------------------------------------------------------------------------

local HEAD = 32
-- The parts of the record that is being gathered, by trace; bodies by packet; how many records are missing before a packet.
local gathered, bodies, numbers, gaps = {}, {}, {}, {}

function nvcap.init()
    gathered, bodies, numbers, gaps = {}, {}, {}, {}
end

-- Gathers the parts of a record, in the first pass over the packets.
local function gather(tvb, pinfo, head)
    local trace = head.trace
    if head.counted then
        local last = numbers[trace]
        if last and head.number > last + 1 then
            gaps[pinfo.number] = head.number - last - 1
        end
        numbers[trace] = last and math.max(last, head.number) or head.number
    end
    if head.parts <= 1 then
        return
    end
    local record = gathered[trace]
    if head.part == 0 then
        record = { number = head.number, kind = head.kind, parts = head.parts, list = {} }
        gathered[trace] = record
    end
    local fits = record and record.number == head.number and record.kind == head.kind and record.parts == head.parts
    if not fits or #record.list ~= head.part then
        gathered[trace] = nil
        return
    end
    record.list[head.part + 1] = tvb(HEAD):raw()
    if #record.list == head.parts then
        bodies[pinfo.number] = table.concat(record.list)
        gathered[trace] = nil
    end
end

local function dissect_packet(tvb, pinfo, tree)
    local flags = tvb(10, 1):uint()
    local head = {
        kind = tvb(9, 1):uint(),
        counted = flags % 2 == 0,
        trace = tvb(12, 4):le_uint(),
        number = tvb(16, 4):le_uint() + tvb(20, 4):le_uint() * 2 ^ 32,
        part = tvb(24, 4):le_uint(),
        parts = tvb(28, 4):le_uint(),
    }
    if not pinfo.visited then
        gather(tvb, pinfo, head)
    end
    local message = kinds[head.kind]
    local name = message and message:lower() or "kind " .. head.kind
    tree:append_text(", " .. name)
    local sub = tree:add(tvb(0, HEAD), string.format("packet: %s, number %.0f", name, head.number))
    sub:add_le(fields.sum, tvb(4, 4))
    sub:add(fields.version, tvb(8, 1), UInt64.new(tvb(8, 1):uint(), 0))
    sub:add(fields.kind, tvb(9, 1), name)
    sub:add(fields.again, tvb(10, 1), not head.counted)
    sub:add_le(fields.trace, tvb(12, 4))
    sub:add(fields.number, tvb(16, 8), UInt64.new(tvb(16, 4):le_uint(), tvb(20, 4):le_uint()))
    sub:add(fields.part, tvb(24, 4), UInt64.new(head.part, 0))
    sub:add(fields.parts, tvb(28, 4), UInt64.new(head.parts, 0))
    pinfo.cols.info = name
    if gaps[pinfo.number] then
        local text = count_of(gaps[pinfo.number], "record is", "records are") .. " missing before this one"
        sub:add_proto_expert_info(experts.missing, text)
    end
    if tvb(8, 1):uint() ~= 1 then
        sub:add_proto_expert_info(experts.damaged, "written by a newer nvcap: install its dissector (nvcap wireshark install)")
        return
    end
    if message == nil then
        return
    end
    local body, s
    if head.parts > 1 then
        s = bodies[pinfo.number]
        if s == nil then
            pinfo.cols.info = string.format("%s, part %d of %d", name, head.part + 1, head.parts)
            if head.part + 1 == head.parts then
                sub:add_proto_expert_info(experts.parts)
            end
            return
        end
        body = ByteArray.new(s, true):tvb("record of " .. head.parts .. " packets")
    else
        if tvb:len() == HEAD then
            s, body = "", tvb(0, 0):tvb()
        else
            s, body = tvb(HEAD):raw(), tvb(HEAD):tvb()
        end
    end
    dissect_body(message, body, s, pinfo, tree)
end

local function is_ours(tvb)
    return tvb:len() >= HEAD and tvb(0, 4):string() == "nvcp"
end

local table_of_links = DissectorTable.get("wtap_encap")
local before = table_of_links:get_dissector(wtap.USER0)

function nvcap.dissector(tvb, pinfo, tree)
    if not is_ours(tvb) then
        return before and before:call(tvb, pinfo, tree) or 0
    end
    pinfo.cols.protocol = "nvcap"
    local top = tree:add(nvcap, tvb())
    local ok, why = pcall(dissect_packet, tvb, pinfo, top)
    if not ok then
        -- An error that names a place is of this program's own.
        top:add_proto_expert_info(experts.damaged, "The packet is damaged: " .. tostring(why))
    end
    return tvb:len()
end

table_of_links:add(wtap.USER0, nvcap)

"""Reads traces that `nvcap export kineto` has written by PyPI's HolisticTraceAnalysis, and prints what it finds as JSON.

    python tests/kineto/check.py FOLDER

FOLDER has a file for each rank.
"""

import json
import logging
import os
import sys

# Times as they are in the file: otherwise HolisticTraceAnalysis rounds each slice to whole microseconds.
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
logging.disable(logging.CRITICAL)

from hta.trace_analysis import TraceAnalysis  # noqa: E402


def rows(table):
    return json.loads(table.to_json(orient="records"))


def main():
    analysis = TraceAnalysis(trace_dir=sys.argv[1])
    types, kernels = analysis.get_gpu_kernel_breakdown(
        visualize=False, num_kernels=1000, duration_ratio=1.0, include_memory_kernels=True
    )
    found = {
        "ranks": sorted(analysis.t.traces),
        "temporal": rows(analysis.get_temporal_breakdown(visualize=False)),
        "types": rows(types),
        "kernels": rows(kernels),
        "overlap": rows(analysis.get_comm_comp_overlap(visualize=False)),
        "idle": [],
        "links": {},
    }
    for rank in found["ranks"]:
        idle, _ = analysis.get_idle_time_breakdown(ranks=[rank], visualize=False)
        found["idle"] += rows(idle)
        trace = analysis.t.traces[rank]
        on_gpu = trace[trace["stream"].ne(-1)]
        found["links"][rank] = int((on_gpu["index_correlation"] > 0).sum())
    json.dump(found, sys.stdout)


main()

"""Reports of AMD's tools as people publish them: words below a table, copies in a file of their own, boxes."""

import re

from gpu_mcp_server.profilers import bottleneck, report_detection, rocprof, rocprof_compute, rocprof_events, timeline
from tests.profilers.test_timelines import database

KERNELS = (
    '"Kind","Agent_Id","Queue_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp",'
    '"Private_Segment_Size","Group_Segment_Size","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z",'
    '"Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
    '"KERNEL_DISPATCH","Agent 4",1,15,"blur(float*)",0,1000,9000,0,0,64,1,1,6400,1,1\n'
    '"KERNEL_DISPATCH","Agent 4",1,15,"blur(float*)",0,20000,28000,0,0,64,1,1,6400,1,1\n'
)
COPIES = (
    '"Kind","Direction","Source_Agent_Id","Destination_Agent_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
    '"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE","Agent 0","Agent 4",0,10000,20000\n'
)


def test_words_below_a_table_are_no_kernels():
    readme = f"# Results\n\n```\n{KERNELS}\n```\n\nAs you see, the kernel, blur, is fast.\n| a, b | c |\n"
    (kernel,) = rocprof.parse_csv({"README.md": readme})
    assert (kernel.name, kernel.calls, kernel.time_us, kernel.grid) == ("blur", 2, 8.0, "100")
    stats = '"Name","Calls","TotalDurationNs"\n"blur",3,900000\n```\nSort by Name, then by Calls, to see more\n'
    (kernel,) = rocprof.parse_csv({"README.md": stats})
    assert kernel.total_us == 900
    assert "rocprof-compute" in bottleneck.kernel_verdict(kernel).advice[0]


def test_kernels_and_copies_of_a_run_are_one_timeline_though_in_two_files():
    files = {"out/7_kernel_trace.csv": KERNELS.encode(), "out/7_memory_copy_trace.csv": COPIES.encode()}
    (events,) = report_detection.read_events(files).values()
    assert [(e.kind, e.device) for e in events] == [("kernel", "Agent 4"), ("copy", "Agent 4"), ("kernel", "Agent 4")]
    text, copies = timeline.describe_timeline(events)
    assert "TIMELINE: 27 us from first to last, idle 4 %" in text and copies.startswith("COPIES: 10 us, 0 % of it")
    assert report_detection.describe_unread(files) == []
    other = {**files, "out/8_kernel_trace.csv": KERNELS.encode()}
    assert len(report_detection.read_events(other)) == 2  # another process, another rank


def test_rocpd_has_a_timeline_with_the_bytes_of_copies():
    data = database(
        """
        CREATE TABLE kernels (name TEXT, agent_abs_index INT, stream_id INT, start INT, end INT);
        CREATE TABLE memory_copies (name TEXT, start INT, end INT, size INT, src_agent_abs_index INT,
            dst_agent_abs_index INT);
        INSERT INTO kernels VALUES ('blur(float*)', 2, 1, 1000, 9000);
        INSERT INTO memory_copies VALUES ('MEMORY_COPY_DEVICE_TO_HOST', 8000, 12000, 4096, 2, 0);
        """
    )
    kernel, copy = rocprof_events.parse_database_events(data)
    assert (kernel.name, copy.name, copy.device, copy.metrics) == ("blur", "[memory copy DtoH]", "2", {"bytes": 4096})
    assert report_detection.read_events({"x.db": data})["x.db"] == [kernel, copy]


BOXES = """
0. Top Stat
+----+-------------------------------+---------+-------------+-------------+
|    | KernelName                    |   Count |     Sum(ns) |    Mean(ns) |
|  0 | yax(double*, double*, int,    |    2.00 | 69768072.00 | 34884036.00 |
|    |  double*)                     |         |             |             |
+----+-------------------------------+---------+-------------+-------------+

16. Vector L1 Data Cache
16.1 Speed-of-Light
| Index   | Metric            |   Value | Unit        |
| 16.1.0  | Buffer Coalescing |   25.00 | Pct of peak |
| 16.1.1  | Cache Util        |   87.79 | Pct of peak |
| 16.1.3  | Cache Hit         |    0.00 | Pct of peak |

17. L2 Cache
17.1 Speed-of-Light
| Index   | Metric      |   Value | Unit   |
| 17.1.0  | L2 Util     |   98.72 | Pct    |
| 17.1.1  | Cache Hit   |   93.46 | Pct    |

"""


def test_what_rocprof_compute_prints_in_boxes_is_read():
    text = re.sub(r"(?m)^\+.*\n", "", BOXES).replace("|", "\u2502")
    name, (kernel,) = report_detection.read({"analyze.txt": text.encode()})
    assert (name, kernel.name, kernel.calls, kernel.time_us) == ("rocprof-compute", "yax", 2, 34884.036)
    assert kernel.units_percent == {"L2 Util": 98.72, "vL1D Cache Util": 87.79}
    assert kernel.metrics["L2 Cache Hit [Pct]"] == 93.46
    assert bottleneck.kernel_verdict(kernel).advice[0].startswith("coalesce: 8 of 32 bytes")


def test_what_amds_workgroups_wait_for_limits_their_occupancy():
    table = "Metric,Avg,Unit,Peak,PoP\nWave Occupancy,102.7,Wavefronts,3328,3.09\n"
    table += "Insufficient CU LDS,6015745446,Cu,,\nInsufficient SIMD VGPRs,12,Simd,,\n"
    (kernel,) = rocprof_compute.parse_compute({"a.csv": table})
    said = bottleneck.kernel_verdict(kernel).advice[0]
    assert said.startswith("occupancy is limited by LDS to 3 %: less LDS a workgroup")
    (full,) = rocprof_compute.parse_compute({"a.csv": table.replace("3.09", "83.09")})
    assert "occupancy" not in bottleneck.kernel_verdict(full).advice[0]

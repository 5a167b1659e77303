"""How far event time has come in a source: the values of ``app.read(…, watermark=…)``.

    app.read("views", …, time=View.at, watermark=hr.watermarks.bounded("5s"))       # the same as out_of_order="5s"
    app.read("views", …, time=View.at, watermark=hr.watermarks.monotonous())        # the same as out_of_order="0s"
    app.read("views", …, time=View.at, watermark=hr.watermarks.punctuated("kind = 'flush'"))
    app.read("views", …, time=View.at, watermark=Adaptive())                        # your own hr.WatermarkGenerator

Each split of a source has its own watermark. The watermark of the source is the least of them.
"""

from __future__ import annotations

from headrace.dataflow.watermarking import bounded, monotonous, punctuated

__all__ = ["bounded", "monotonous", "punctuated"]


def __dir__() -> list[str]:
    return __all__

"""Everything that draws an estimate: `vramcast.estimates.view` says what each function here is for.

`answer_text.py` is what people read in a terminal, `answer_json.py` what programs read, `job_page.py` the HTML page, a
notebook's part of it, and the timeline as a picture. An answer is data (`result.py`) and knows none of them.
"""

from vramcast.report.answer_json import SCHEMA, to_dict
from vramcast.report.answer_text import text
from vramcast.report.job_page import draw_fragment, draw_page, plot, plot_text, save

__all__ = ["SCHEMA", "draw_fragment", "draw_page", "plot", "plot_text", "save", "text", "to_dict"]

"""Output of estimates; `vramcast.estimates.view` documents the functions.

`answer_text.py` writes text for a terminal, `answer_json.py` JSON for programs, and `job_page.py` the HTML page, a notebook's
part of it, and the timeline as a picture. An estimate is data (`result.py`) and does not depend on them.
"""

from vramcast.report.answer_json import SCHEMA, to_dict
from vramcast.report.answer_text import details, signs_of, text
from vramcast.report.job_page import draw_fragment, draw_page, plot, plot_text, save

__all__ = ["SCHEMA", "details", "draw_fragment", "draw_page", "plot", "plot_text", "save", "signs_of", "text", "to_dict"]

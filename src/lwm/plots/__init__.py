"""Pictures from rows and run directories; nothing here knows how training works.

Needs the extra ``viz``: matplotlib and Pillow are loaded only when something is drawn.
"""

from lwm.plots.curves import learning_curve, score_plot
from lwm.plots.episode import animate_episode

__all__ = ["animate_episode", "learning_curve", "score_plot"]

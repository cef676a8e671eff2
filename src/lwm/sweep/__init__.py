"""Many runs on many machines: Ray places them, we make them safe to stop, lose and repeat.

``driver`` is the runner that experiments get (beside ``experiments.runner.run_all``); on each node
``attend`` watches over one run, which is a process of its own (``child``): ``lwm train`` and
nothing else.  What two of them must never do at once is kept apart by ``fence``; who is tried again
is decided in ``policy``, by which ``forecast`` also plays a sweep that nobody has paid for yet.
"""

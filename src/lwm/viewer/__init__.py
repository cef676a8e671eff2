"""``lwm view``: a web page over run directories, live while training goes on.

It reads run directories and never writes into them; it imports neither torch nor training code.
What plays (``lwm.playing``) is another process, started only when somebody takes the keyboard.
"""

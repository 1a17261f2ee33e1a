"""Finds out within seconds whether a server answers."""

import threading

PROBE_SECONDS = 6  # with all imports the answer comes within 15 s, even where a firewall drops every packet


def failure_of(url: str) -> str | None:
    """Returns None if the server of a URL answers, else why not."""
    answers = []
    # A name server that never answers outlasts every time-out of `requests`; the thread is then left behind.
    probe = threading.Thread(target=lambda: answers.append(ask(url)), daemon=True)
    probe.start()
    probe.join(PROBE_SECONDS)
    return answers[0] if answers else f"no answer within {PROBE_SECONDS} s"


def ask(url: str) -> str | None:
    """Returns None if the server answers, else why not; uses the proxies that tfds uses."""
    import requests

    try:
        requests.head(url, timeout=PROBE_SECONDS)
    except requests.RequestException as error:
        return type(error).__name__
    return None

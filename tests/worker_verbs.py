"""What the services of several tests can do alike."""

import time

from sparring.errors import Missing
from sparring.services.register import register


class Verbs:
    """Verbs that answer, take their time, or fail; `done` is what was done, `sizes` those of batches."""

    def __init__(self) -> None:
        self.done, self.sizes = [], []

    @register()
    def forget(self):
        self.done, self.sizes = [], []

    @register()
    def sleep(self, seconds):
        time.sleep(seconds)
        return seconds

    @register()
    def worked(self):
        return list(self.done)

    @register()
    def batches(self):
        return list(self.sizes)

    @register(response=False, queue=2, full="refuse")
    def rare(self, seconds):
        time.sleep(seconds)

    @register()
    def breaks(self, kind):
        if kind == "ours":
            raise Missing("there is no cheese", where="larder", do="Buy some")
        if kind == "object":
            return object()
        raise ZeroDivisionError("by nothing")

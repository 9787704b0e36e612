"""Keeps the number of workers constant: replaces those that die, and on request all of them one by one."""

import time
from collections import deque
from collections.abc import Callable

from app.supervisor.config import SupervisorConfig
from app.supervisor.worker import Worker

Spawn = Callable[[int, int], Worker]
LONG_LIFE_S = 10.0  # a worker that ran this long was healthy: it is replaced without a delay
MAX_DELAY_S = 5.0
HOPELESS_AFTER = 5


class Place:
    """The place of one worker. It counts deaths; quick deaths in a row delay the next start."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.worker: Worker | None = None
        self.restarts = 0
        self.quick_deaths = 0
        self.retry_at = 0.0


class Pool:
    """The workers. `step` does the work that is due and never waits. `spawn(index, restarts)` starts a
    worker."""

    def __init__(self, config: SupervisorConfig, spawn: Spawn, say: Callable[[str], None]) -> None:
        self._places = [Place(index) for index in range(config.workers)]
        self._spawn = spawn
        self._say = say
        self._ready_s = config.ready_timeout_s
        self._stop_s = config.stop_timeout_s
        self._to_roll: deque[Place] = deque()
        self._replacement: Worker | None = None
        self._retiring: list[Worker] = []
        self._ever_ready = False

    def workers(self) -> list[Worker]:
        """Every process that is not known to have ended."""
        standing = [place.worker for place in self._places if place.worker]
        return [*standing, *([self._replacement] if self._replacement else []), *self._retiring]

    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self.workers()]

    def all_ready(self) -> bool:
        return all(place.worker is not None and place.worker.ready for place in self._places)

    def hopeless(self) -> bool:
        """Whether more starts are useless: no worker has ever served, and a place had 5 quick deaths in a
        row."""
        return not self._ever_ready and any(place.quick_deaths >= HOPELESS_AFTER for place in self._places)

    def step(self) -> None:
        for worker in self.workers():
            worker.check()
            self._ever_ready |= worker.ready
        for place in self._places:
            self._fill(place)
        self._retire_step()
        self._roll_step()

    def roll(self) -> None:
        """Replaces every worker, each once its replacement serves. A call meanwhile starts over."""
        under_way = [self._to_roll[0]] if self._replacement else []
        self._to_roll = deque([*under_way, *self._places])

    def stop(self, patience_s: float) -> None:
        self._to_roll.clear()
        for worker in self.workers():
            if not worker.gone():
                worker.retire(patience_s)

    def stopped(self) -> bool:
        for worker in self.workers():
            worker.press()
        return all(worker.gone() for worker in self.workers())

    def _fill(self, place: Place) -> None:
        worker = place.worker
        if worker is not None and worker.gone():
            self._count_death(place, worker)
        elif worker is not None and not worker.ready and worker.age_s() > self._ready_s:
            self._say(f"worker {place.index} was not ready after {self._ready_s:.0f} s; ending it")
            worker.process.kill()
        if place.worker is None and time.monotonic() >= place.retry_at:
            place.worker = self._try_to_spawn(place)

    def _count_death(self, place: Place, worker: Worker) -> None:
        quick = worker.age_s() < LONG_LIFE_S
        place.quick_deaths = place.quick_deaths + 1 if quick else 0
        delay_s = min(MAX_DELAY_S, 0.1 * 2**place.quick_deaths) if quick else 0.0
        place.restarts += 1
        place.retry_at = time.monotonic() + delay_s
        place.worker = None
        self._say(f"worker {place.index} ended with {worker.end_of()}; another starts in {delay_s:.1f} s")

    def _try_to_spawn(self, place: Place) -> Worker | None:
        try:
            return self._spawn(place.index, place.restarts)
        except OSError as error:  # such as no memory or no process ids: the running workers go on
            self._say(f"worker {place.index} could not be started: {error}")
            place.retry_at = time.monotonic() + MAX_DELAY_S
            return None

    def _retire_step(self) -> None:
        for worker in self._retiring:
            worker.press()
        self._retiring = [worker for worker in self._retiring if not worker.gone()]

    def _roll_step(self) -> None:
        if not self._to_roll or self._retiring:
            return
        place = self._to_roll[0]
        if self._replacement is None:
            self._replacement = self._try_to_spawn(place)
            if self._replacement is None:
                self._to_roll.clear()
        elif self._replacement.gone() or self._replacement.age_s() > self._ready_s:
            self._say(f"the replacement for worker {place.index} did not become ready; the old workers stay")
            self._retire(self._replacement)
            self._replacement = None
            self._to_roll.clear()
        elif self._replacement.ready:
            if place.worker is not None:
                self._retire(place.worker)
            place.worker, self._replacement = self._replacement, None
            self._to_roll.popleft()
            if not self._to_roll:
                self._say("all workers are replaced")

    def _retire(self, worker: Worker) -> None:
        if not worker.gone():
            worker.retire(self._stop_s)
            self._retiring.append(worker)

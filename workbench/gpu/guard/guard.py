"""The guard: reverts GPU settings by itself when nobody watches over them any more.

A small process on the host that owns the GPUs, in a session of its own. What it is to watch stands in the journal,
under each entry's `watch`, so that nothing else has to agree with it:

    heartbeat_s   revert when the entry's owner has been silent for so long; None: its owner is not waited for
    trial         a name; revert `trial_s` after it was first seen here
    back          the fields of the entry that was there before, where a trial is to go back to that, or it was kept

A setting that is kept deliberately, or has no `watch`, is left alone. So is a value that is not the journal's: whoever
set it meant it, and only a user decides what is to become of it. So is one of a boot before this one. At its
temperature limit those of a GPU's settings are reverted that let it run hotter, whoever made them; a limit or a lock
that keeps it cooler stays. When the guard is told to end (SIGTERM, as systemd does at a logout that processes must not
outlive), what waits for a heartbeat or for the end of a trial is reverted first. Ages are told by this host's monotonic
clock, and a heartbeat is a file whose time changes: no clock that jumps matters.

A guard that sudo made root sets only values that stood in the journal at its start, when the user had sudo's consent.
From the journal as it is later it takes only less: settings that are reverted, kept or confirmed. One that has to watch
more takes its place.

Sent to the host: standard library only, Python 3.8.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from workbench.gpu.guard.files import Broken, Files, owner_id, owner_token
from workbench.gpu.guard.privileges import Programs, Unsafe
from workbench.gpu.guard.temperatures import Heat
from workbench.gpu.settings import claims, revert
from workbench.gpu.settings.revert import HOST

TICK_S = 0.25
HEAT_S = 1.0
TOLD_S = 1.0  # how often it is seen to that the host's register knows of the changes
BACKOFF_S = (1.0, 60.0)
ASLEEP_S = 2.0  # a guard that did not run itself for so long cannot say that others were silent
APPLYING_S = 10.0  # a trial's owner that still holds the journal so long after its end is taken for frozen
READY_S = 10.0
JUMP_S = 1.0
SET = (claims.RESTORE, claims.DONE)
COOLING = (*revert.LOCKS, "power_limit_w")  # what can keep a GPU cooler

Entry = Any  # one of journal.json's, as a dict


class Due(NamedTuple):
    entry: Entry
    why: str
    trial: bool  # go back to what was before the trial only

    @property
    def key(self) -> tuple[str, str]:
        return key_of(self.entry)


class Result(NamedTuple):
    due: Due
    ok: bool
    message: str
    way: str = claims.RESTORE  # or why nothing was set


class Guard:
    def __init__(self, files: Files, programs: Programs, tick_s: float = TICK_S, heat_s: float = HEAT_S) -> None:
        self.files, self.programs, self.tick_s = files, programs, tick_s
        self.heat = Heat(heat_s)
        self.stamp: list[int] | None = None
        self.entries: list[Entry] = []
        self.broken: str | None = None
        self.seen: dict[tuple[str, str], Entry] | None = None  # by a root that serves a user: what it may set
        self.unseen: list[str] = []
        self.untold: dict[tuple[str, str], Result] = {}  # done, and the journal could not be told yet
        self.beats: dict[str, tuple[int, float]] = {}  # by owner: its last sign of life, and when we saw it
        self.others: tuple[claims.SettingClaim, ...] = ()
        self.hot: dict[str, str] = {}  # by GPU: at which temperature it was given up
        before = files.state()
        trials = before.get("trials") if before.get("boot_id") == files.boot_id else None
        self.trials: dict[str, float] = trials if isinstance(trials, dict) else {}
        self.did, self.did_unix_s = before.get("did"), before.get("did_unix_s")
        self.failed: str | None = None
        self.note: str | None = None  # what is left as it is on a GPU at its limit
        self.retry_at, self.backoff_s = 0.0, BACKOFF_S[0]
        self.tried: set[tuple[str, str]] = set()  # only these wait until then
        self.ran_at = time.monotonic()
        self.since_unix_s = time.time()
        self.told: dict[str, Any] = {}
        self.to_end = False
        self.tell_others_at = 0.0

    def told_to_end(self, *_: object) -> None:
        self.to_end = True

    def run(self, ready: Callable[[], None]) -> None:
        """Until nothing is left to watch. A fault of ours must not leave the settings without a guard."""
        self.heat.start()
        self.files.say_pid()
        self.files.log(f"watching, process {os.getpid()}")
        while True:
            try:
                if not self.turn():
                    return
                self.tell()
                ready()
            except Exception:
                self.files.log("a defect in the guard: " + traceback.format_exc())
                time.sleep(BACKOFF_S[0])
            time.sleep(self.tick_s)

    def turn(self) -> bool:
        """One look at everything; False when there is nothing left to watch."""
        self.files.only_one()  # again, where another program took the place that we offered
        asking = self.files.asked_to_leave()
        if asking is not None:
            if self.programs.is_guard(asking) and self.files.made_way(asking):
                self.files.log("ending: another takes over")
                return False
            self.files.ask_to_leave(False)
            self.files.log("asked to make way, but nobody took over; watching on")
        self.read()
        self.tell_others()
        self.listen()
        self.feel()
        due = self.due()
        if time.monotonic() >= self.retry_at or any(one.key not in self.tried for one in due):
            self.give_back(due)
            self.ran_at = time.monotonic()
        if not due:
            self.calm()
            if self.to_end:
                self.files.log("ending, as it was told to")
                self.tell(running=False)
                return False
        return bool(self.entries) or not self.end()

    def calm(self) -> None:
        """Nothing has failed that still waits to be done."""
        self.failed, self.retry_at, self.backoff_s, self.tried = None, 0.0, BACKOFF_S[0], set()

    def read(self) -> None:
        stamp = self.files.stamp()
        if stamp == self.stamp:
            return
        self.stamp = stamp
        try:
            self.entries = self.watched(self.files.load())
            self.broken = None
        except Broken as why:
            if self.seen is None and self.programs.user is not None:
                self.seen = {}
            if self.broken is None and self.entries:
                self.files.log(f"{why}: going by what it said before")
            self.broken = str(why)

    def tell_others(self) -> None:
        """Tell the register again what it has lost: whoever empties it must not make a change unknown, and with the
        journal lost as well what stands here is all that there is."""
        if not self.entries or time.monotonic() < self.tell_others_at:
            return
        self.tell_others_at = time.monotonic() + TOLD_S
        try:
            if not self.files.untold() or not self.files.take(()):
                return
        except OSError:
            return
        try:
            self.read()
            self.files.publish(self.entries if self.broken else self.files.load()["entries"])
            self.files.log("the register of the host knew nothing of the settings and was told again")
        except Broken:
            self.stamp = None  # it has just become so
        finally:
            self.files.release()

    def watched(self, journal: Mapping[str, Any]) -> list[Entry]:
        found = [
            entry
            for entry in journal["entries"]
            if entry.get("watch") and entry.get("state") != "kept" and entry["boot_id"] == self.files.boot_id
        ]
        if self.programs.user is None:
            return found
        by_key = {key_of(entry): entry for entry in found}
        if self.seen is None:
            self.seen = by_key
        self.seen = {key: self.seen[key] for key in self.seen if key in by_key}
        self.unseen = [
            named(e) for key, e in by_key.items() if key not in self.seen or set_by(e) != set_by(self.seen[key])
        ]
        return [less(by_key[key], self.seen[key]) for key in self.seen]

    # ---- what is due

    def listen(self) -> None:
        """Who gave a sign of life, and which trials have begun."""
        now = time.monotonic()
        if now - self.ran_at > ASLEEP_S + self.tick_s:
            self.beats = {owner: (beat, now) for owner, (beat, _) in self.beats.items()}
        self.ran_at = now
        owners = {owner_id(e) for e in self.entries if e["watch"].get("heartbeat_s")}
        self.beats = {owner: known for owner, known in self.beats.items() if owner in owners}
        for owner in owners:
            beat = self.files.beat(owner)
            if owner not in self.beats or self.beats[owner][0] != beat:
                self.beats[owner] = (beat, now)
        lasts = {e["watch"]["trial"]: e["watch"]["trial_s"] for e in self.entries if e["watch"].get("trial")}
        self.trials = {trial: ends_at(self.trials.get(trial), now + lasts[trial]) for trial in lasts}

    def feel(self) -> None:
        """Which GPUs reached their limit. That stands until what heats them is reverted, also when they cool down."""
        gpus = {e["gpu_uuid"]: e["gpu_index"] for e in self.entries if e["gpu_uuid"] != HOST}
        self.heat.watch(tuple(sorted(gpus)))
        heated = {e["gpu_uuid"] for e in self.entries if self.heats(e)}
        hot = {}
        for uuid, index in gpus.items():
            celsius, limit = self.heat.celsius.get(uuid), self.heat.limits.get(uuid)
            if celsius is not None and limit is not None and celsius >= limit:
                hot[uuid] = self.hot.get(uuid) or f"GPU{index} reached {celsius} °C, its limit is {limit:g} °C"
            elif uuid in self.hot and uuid in heated:
                hot[uuid] = self.hot[uuid]
        self.hot = hot
        stays = [e for e in self.entries if e["gpu_uuid"] in hot and e["setting"] in COOLING and not self.heats(e)]
        whys = "; ".join(dict.fromkeys(hot[e["gpu_uuid"]] for e in stays))
        note = (
            f"{', '.join(map(named, stays))} kept, which going back could only make hotter: {whys}" if stays else None
        )
        if note and note != self.note:
            self.files.log(note)
        self.note = note

    def heats(self, entry: Entry) -> bool:
        """Whether to revert it makes its GPU cooler."""
        top_mhz = self.heat.tops_mhz.get((entry["gpu_uuid"], entry["setting"]))
        return revert.heats(entry["setting"], entry["now"], target(Due(entry, "", False)), top_mhz)

    def silent(self, entry: Entry) -> bool:
        limit_s = entry["watch"].get("heartbeat_s")
        return bool(limit_s) and time.monotonic() - self.beats[owner_id(entry)][1] > limit_s

    def due(self) -> list[Due]:
        found = [(entry, self.why(entry)) for entry in self.entries]
        return [Due(entry, *why) for entry, why in found if why]

    def why(self, entry: Entry) -> tuple[str, bool] | None:
        """Why to revert it now, and whether that is the end of its trial only."""
        watch, hot = entry["watch"], self.hot.get(entry["gpu_uuid"])
        if self.silent(entry):
            return f"no heartbeat for {watch['heartbeat_s']:g} s", False
        if hot and self.heats(entry):
            return hot, False
        if self.to_end and (watch.get("heartbeat_s") or watch.get("trial")):
            return "the guard was told to end", bool(watch.get("trial"))
        if watch.get("trial") and time.monotonic() >= self.trials[watch["trial"]]:
            return f"not confirmed within {watch['trial_s']:g} s", True
        return None

    def silent_owners(self, due: Sequence[Due]) -> tuple[str, ...]:
        """Whose lock may be broken: they were to give a sign of life and did not."""
        now, found = time.monotonic(), set()
        for entry, _, trial in due:
            overdue = trial and now > self.trials[entry["watch"]["trial"]] + APPLYING_S
            if self.silent(entry) or (overdue and not entry["watch"].get("heartbeat_s")):
                found.add(owner_token(entry))
        return tuple(found)

    # ---- giving back

    def give_back(self, due: Sequence[Due]) -> None:
        """Under the journal's lock, by the journal as it is then: it may just have been confirmed or reverted."""
        if not due or not self.lock(self.silent_owners(due)):
            return
        try:
            self.read()
            self.listen()
            due = sorted(self.due(), key=lambda d: (d.entry["gpu_index"], revert.order(d.entry["setting"])))
            if not due:
                self.calm()
                return
            self.files.log("giving back: " + "; ".join(f"{named(d.entry)} ({d.why})" for d in due))
            keys = {one.key for one in due}
            self.others = claims.credible(self.files.others(), keys, self.programs.may_set)
            self.settle(self.restore_all(due))
        finally:
            self.files.release()

    def lock(self, silent: tuple[str, ...]) -> bool:
        try:
            return self.files.take(silent) or self.files.take(silent)
        except OSError as error:
            if self.broken is None:
                self.fail(f"the journal cannot be locked: {error.strerror}")
                return False
            return True  # whoever broke the journal: the settings are given back all the same

    def restore_all(self, due: Sequence[Due]) -> list[Result]:
        """All GPUs at once, each one's settings in order: nvidia-smi can take seconds, and hang for one GPU alone."""
        self.tried = {one.key for one in due}
        found: dict[tuple[str, str], Result] = {}

        def restore_gpu(uuid: str) -> None:
            for one in due:
                if one.entry["gpu_uuid"] == uuid:
                    found[one.key] = self.restore(one)

        uuids = sorted({one.entry["gpu_uuid"] for one in due})
        threads = [threading.Thread(target=restore_gpu, args=(uuid,)) for uuid in uuids]
        with self.programs.as_root():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return [found[one.key] for one in due]

    def restore(self, due: Due) -> Result:
        programs, uuid, setting, failed = self.programs, due.entry["gpu_uuid"], due.entry["setting"], None
        untold = self.untold.get(due.key)
        if untold is not None and untold.due.entry == due.entry:  # another may have set it since
            return untold
        try:
            back = back_of(due)
            live = programs.told(uuid, setting)
            way = claims.way_back(due.entry, live, self.others, back["now"] if back else None)
            if way.do != claims.RESTORE:
                return Result(due, True, way.why, way.do)
            cores = sorted(dict(programs.governors())) if setting == "governor" else ()
            for step in revert.steps(
                uuid,
                setting,
                revert.wanted_back(way.value),
                nvidia_smi=programs.nvidia_smi,
                tee=programs.tee,
                cores=cores,
                sysfs=programs.sysfs,
            ):
                code, said = programs.set(step)
                failed = revert.failure(code, said, "tee" if setting == "governor" else "nvidia-smi") or failed
            return Result(due, *revert.restored(setting, way.value, programs.told(uuid, setting), failed))
        except Exception as error:
            return Result(due, False, f"a defect in the guard: {error!r}")

    def settle(self, results: Sequence[Result]) -> None:
        """Journal, log and state after the fact. What could not be given back stays in the journal."""
        done = [r.due for r in results if r.ok]
        for due, ok, message, _ in results:
            self.files.log(f"{named(due.entry)}: {'' if ok else 'FAILED: '}{message}")
        if done:
            self.did, self.did_unix_s = summed_up(results), round(time.time(), 3)
            self.files.log(self.did)
        left = "; ".join(self.hand(r.due, r.message) for r in results if not r.ok)
        if self.broken is not None:  # such a file is not ours to replace
            keys = {due.key for due in done}
            self.entries = [e for e in self.entries if (e["gpu_uuid"], e["setting"]) not in keys]
            self.files.publish(self.entries)
        else:
            try:
                self.files.save(noted(self.files.load(), results, self.files.boot_id))
                self.untold = {}
            except (OSError, Broken) as error:
                self.untold.update({r.due.key: r for r in results if r.ok})
                left = "; ".join(filter(None, (left, f"the journal could not be brought up to date: {error}")))
        if left:
            self.fail(left)
        else:
            self.calm()
        self.read()

    def hand(self, due: Due, message: str) -> str:
        entry = due.entry
        by_hand = revert.by_hand(entry["gpu_uuid"], entry["setting"], target(due), self.programs.sysfs)
        return f"{named(entry)} was not given back ({due.why}): {message}. By hand: {by_hand}"

    def fail(self, why: str) -> None:
        if why != self.failed:
            self.files.log(f"{why}; trying again")
        self.failed = why
        self.retry_at = time.monotonic() + self.backoff_s
        self.backoff_s = min(self.backoff_s * 2, BACKOFF_S[1])

    # ---- the end, and what is told

    def end(self) -> bool:
        """Whether it is over. Under the journal's lock, which a change holds until its guard has answered."""
        try:
            if not self.files.take(()):
                return False
        except OSError:
            if self.broken is None:
                return False
        self.stamp = None
        self.read()
        if not self.entries:
            self.files.log("nothing is left to watch; ending")
            self.files.forget_beats()
            self.tell(running=False)
            self.files.let_go()
        self.files.release()
        return not self.entries

    def tell(self, running: bool = True) -> None:
        wall, now = time.time(), time.monotonic()
        limits = {u: self.heat.limits[u] for u in self.heat.wanted if u in self.heat.limits}
        known = self.told.get("trials_until_unix_s", {})  # not told anew before the clock has jumped
        until = {trial: round(wall + at - now, 1) for trial, at in self.trials.items()}
        until = {t: known[t] if abs(known.get(t, 0.0) - at) < JUMP_S else at for t, at in until.items()}
        state = {
            "running": running,
            "pid": os.getpid(),
            "boot_id": self.files.boot_id,
            "root": self.programs.root,
            "since_unix_s": round(self.since_unix_s, 3),
            "journal": self.stamp,
            "trials": self.trials,
            "trials_until_unix_s": until,
            "heartbeats": {owner_id(e): e["watch"].get("heartbeat_s") for e in self.entries},
            "limits_c": limits,
            "did": self.did,
            "did_unix_s": self.did_unix_s,
            "note": self.note if running else None,
            "unseen": self.unseen,
            "problem": self.failed or (self.problem() if running or self.entries else None),
        }
        if state != self.told:
            self.told = state
            self.files.tell(state)

    def problem(self) -> str | None:
        unseen = f"{', '.join(self.unseen)}: what the journal says was not there at its start, so it does not set it"
        return self.broken or (unseen if self.unseen else None) or self.heat.problem


def key_of(entry: Entry) -> tuple[str, str]:
    return entry["gpu_uuid"], entry["setting"]


def set_by(entry: Entry) -> tuple[Any, ...]:
    """All values that a guard could set, or take for Workbench's own, by this entry."""
    return entry["before"], entry["now"], entry.get("over"), entry["watch"].get("back", {}).get("now")


def less(entry: Entry, seen: Entry) -> Entry:
    """`seen`, watched as `entry` says now: who is waited for, and for how long."""
    watch = {name: value for name, value in entry["watch"].items() if name != "back"}
    if "back" in entry["watch"] and "back" in seen["watch"]:
        watch["back"] = seen["watch"]["back"]
    return {**seen, "state": entry.get("state"), "owner": entry["owner"], "watch": watch}


def named(entry: Entry) -> str:
    where = "CPU" if entry["gpu_uuid"] == HOST else f"GPU{entry['gpu_index']}"
    return f"{where} {entry['setting']}"


def listed(dues: Sequence[Due]) -> str:
    return ", ".join(named(due.entry) for due in dues)


def summed_up(results: Sequence[Result]) -> str:
    """ "reverted GPU0 gpu_clocks: no heartbeat for 30 s; left GPU0 power_limit_w alone: set to 400 W, now 200 W…"."""
    back = [r.due for r in results if r.ok and r.way in SET]
    said = [f"reverted {listed(back)}: {'; '.join(dict.fromkeys(due.why for due in back))}"] if back else []
    said += [f"did not revert {named(r.due.entry)}: {r.message}" for r in results if r.way not in SET]
    return "; ".join(said)


def ends_at(known: object, latest: float) -> float:
    """Of a trial: as a guard before us may have written down, but not later than if it began now."""
    return known if isinstance(known, (int, float)) and known <= latest else latest


def target(due: Due) -> Any:
    back = back_of(due)
    return back["now"] if back else due.entry["before"]


def back_of(due: Due) -> Any:
    """What a trial, or any change of what was kept deliberately, goes back to where the setting was altered before."""
    back = due.entry["watch"].get("back")
    return back if back and (due.trial or back["state"] == "kept") else None


def noted(journal: Mapping[str, Any], results: Sequence[Result], boot_id: str) -> dict[str, Any]:
    """The journal with what was given back."""
    entries, log = list(journal["entries"]), list(journal["log"])
    for due, ok, message, way in results:
        key, back = due.key, back_of(due) if way in SET else None
        log.append(
            {
                "unix_s": round(time.time(), 3),
                "boot_id": boot_id,
                "who": "guard",
                "ok": ok,
                "message": message,
                "what": f"guard {'reverted' if way in SET else 'left alone'}: " + due.why,
                "gpu_uuid": key[0],
                "setting": key[1],
                "now": revert.wanted_back(target(due)) if way in SET else due.entry["now"],
            }
        )
        if not ok:
            continue
        kept = []
        for entry in entries:
            if (entry["gpu_uuid"], entry["setting"]) != key:
                kept.append(entry)
            elif back:
                kept.append({**entry, **back})
            elif way == claims.ASK:  # it stays, for a user to decide; the guard is done with it
                kept.append({**entry, "watch": {}})
        entries = kept
    return {**journal, "entries": entries, "log": log}


# ---- its start


def serve(guard: Guard, answers: int) -> None:
    """What the detached process does. `answers`: a pipe that hears when the first look is done."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, guard.told_to_end)
    os.chdir("/")
    null, log = os.open(os.devnull, os.O_RDWR), guard.files.opened("log", os.O_WRONLY | os.O_APPEND)
    for number, handle in ((0, null), (1, log), (2, log)):
        os.dup2(handle, number)
    pipes = [answers]

    def ready() -> None:
        if pipes:
            os.write(pipes[0], json.dumps({"pid": os.getpid()}).encode())
            os.close(pipes.pop())

    guard.run(ready)
    ready()


def detach(guard: Guard) -> dict[str, Any]:
    """Start the guard in a session of its own, whose parent is gone; what it answers."""
    hears, answers = os.pipe()
    if os.fork() == 0:
        os.close(hears)
        os.setsid()
        if os.fork() == 0:
            try:
                serve(guard, answers)
            except BaseException:
                os.write(2, traceback.format_exc().encode())
                os._exit(70)  # EX_SOFTWARE, sysexits.h
        os._exit(0)
    os.close(answers)
    os.wait()
    said = b""
    while True:
        more = os.read(hears, 4096)
        if not more:
            break
        said += more
    ended = {"error": f"it ended at once; its log is {guard.files.root}/guard/log"}
    return json.loads(said.decode()) if said else ended


def begin(files: Files, programs: Programs, options: Mapping[str, float]) -> dict[str, Any]:
    """Become the guard, or wait until the one that is there has seen the journal as it is now."""
    files.prepare()
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if files.only_one():
            files.ask_to_leave(False)
            return detach(Guard(files, programs, **options))
        state = files.state()
        if state.get("unseen") or (programs.root and state.get("root") is False):
            files.ask_to_leave(True)
        elif state.get("running") and state.get("journal") == files.stamp():
            return {"pid": state.get("pid"), "root": state.get("root")}
        time.sleep(0.02)
    return {"error": f"the guard that is there (process {files.state().get('pid')}) does not answer"}


def main() -> None:
    """argv[1]: {"root": the state directory's gpu/, "register": the directory of the host's register, "options":
    {"tick_s", "heat_s"}, and what Programs takes}. Prints {"pid"} or {"error"}."""
    orders = json.loads(sys.argv[1])
    os.umask(0o077)
    try:
        programs = Programs(orders)
        answer = begin(Files(orders["root"], orders.get("register")), programs, orders.get("options", {}))
    except OSError as error:
        answer = {"error": f"{error.filename or 'guard'}: {error.strerror}"}
    except Unsafe as why:
        answer = {"error": str(why)}
    print(json.dumps(answer))  # noqa: T201

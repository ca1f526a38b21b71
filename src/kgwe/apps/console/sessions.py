"""Sessions of browsers, and links that sign a browser in once.

A session belongs to a token, which is reviewed again and again, or to a user of a client certificate. It lives in this
process: after a restart users sign in again.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from kgwe.httpapi import problems

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.httpapi.authentication import User

_MOST_SESSIONS: Final = 10_000
_MOST_CODES: Final = 1_000
_SESSIONS_OF_USER: Final = 50
_CODES_OF_USER: Final = 20
_BYTES: Final = 32
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a session is of: a token of Kubernetes, or a user whose certificate was verified."""

    #: of the user
    name: str
    token: str = field(default="", repr=False)
    user: User | None = None
    #: when the certificate ends, in seconds since 1970
    until_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Session:
    """One browser that is signed in."""

    identity: Identity
    csrf: str
    started_s: float
    used_s: float


class _Pool(Generic[T]):
    """Values by the hash of their name, with limits: the user with the most loses its oldest value first."""

    def __init__(self, most: int, most_of_user: int) -> None:
        self._most = most
        self._most_of_user = most_of_user
        self._owners: dict[bytes, str] = {}
        # The oldest of each user first.
        self._values: defaultdict[str, dict[bytes, T]] = defaultdict(dict)

    def get(self, key: bytes) -> T | None:
        """Return a value; None if there is none."""
        owner = self._owners.get(key)
        return self._values[owner][key] if owner is not None else None

    def put(self, key: bytes, owner: str, value: T) -> None:
        """Keep a value as the newest of its owner."""
        self.pop(key)
        self._owners[key] = owner
        mine = self._values[owner]
        mine[key] = value
        if len(mine) > self._most_of_user:
            self.pop(next(iter(mine)))
        if len(self._owners) > self._most:
            most = max(self._values, key=lambda each: len(self._values[each]))
            self.pop(next(iter(self._values[most])))

    def clear(self) -> None:
        """Remove all values."""
        self._owners.clear()
        self._values.clear()

    def pop(self, key: bytes) -> T | None:
        """Remove and return a value; None if there is none."""
        owner = self._owners.pop(key, None)
        if owner is None:
            return None
        value = self._values[owner].pop(key)
        if not self._values[owner]:
            del self._values[owner]
        return value


class Sessions:
    """The sessions and sign-in codes of this process. Only hashes of their names are kept."""

    def __init__(
        self, *, idle_s: float, longest_s: float, code_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._idle_s = idle_s
        self._longest_s = longest_s
        self._code_s = code_s
        self._clock = clock
        self._sessions: _Pool[Session] = _Pool(_MOST_SESSIONS, _SESSIONS_OF_USER)
        self._codes: _Pool[tuple[float, Identity]] = _Pool(_MOST_CODES, _CODES_OF_USER)

    @property
    def code_seconds(self) -> float:
        """How long a code works."""
        return self._code_s

    def make_code(self, identity: Identity) -> str:
        """Return a code that signs a browser in once."""
        code = secrets.token_urlsafe(_BYTES)
        self._codes.put(_hash(code), identity.name, (self._clock() + self._code_s, identity))
        return code

    def redeem(self, code: str) -> tuple[str, Session]:
        """Return the name of a new session and the session; raise a Problem with 401 for a code that does not work."""
        until_s, identity = self._codes.pop(_hash(code)) or (0.0, None)
        if identity is None or until_s <= self._clock():
            raise problems.unauthorized("this link was used already, or is too old: run `kgwe console open` again")
        return self.start(identity)

    def start(self, identity: Identity) -> tuple[str, Session]:
        """Return the name of a new session and the session."""
        name, now_s = secrets.token_urlsafe(_BYTES), self._clock()
        session = Session(identity, secrets.token_urlsafe(_BYTES), now_s, now_s)
        self._sessions.put(_hash(name), identity.name, session)
        return name, session

    def find(self, name: str, *, is_use: bool = True) -> Session:
        """Return a session; raise a Problem with 401 if it has ended. `is_use`: the user did something."""
        key, now_s = _hash(name), self._clock()
        session = self._sessions.get(key)
        if session is None or now_s >= min(
            session.used_s + self._idle_s, session.started_s + self._longest_s, session.identity.until_s
        ):
            self._sessions.pop(key)
            raise problems.unauthorized("your session has ended: run `kgwe console open` to sign in again")
        if is_use:
            session = replace(session, used_s=now_s)
            self._sessions.put(key, session.identity.name, session)
        return session

    def end(self, name: str) -> None:
        """End a session."""
        self._sessions.pop(_hash(name))


def is_equal(one: str, other: str) -> bool:
    """Whether two secrets are equal, in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


def _hash(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=32).digest()

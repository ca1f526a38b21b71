"""Mail by SMTP, sent from a thread: smtplib waits."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
import threading
from email.message import EmailMessage
from email.utils import formatdate
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kgwe.notify.notification import Notification
    from kgwe.notify.secrets import Secrets
    from kgwe.notify.settings import EmailSettings

_log = structlog.get_logger(__name__)
_MAX_SUBJECT: Final = 200
# Replies from this number on are final.
_FINAL: Final = 500


class EmailChannel:
    """Sends notifications as plain text to the recipients of the settings, or to one owner."""

    def __init__(self, settings: EmailSettings, secrets: Secrets) -> None:
        self._settings = settings
        self._secrets = secrets
        self._thread: threading.Thread | None = None

    async def send(self, notification: Notification, target: str) -> None:
        recipients = (target,) if target else self._settings.recipients
        if not recipients:
            raise errors.Permanent(f"channel {self._settings.name} has no recipients")
        password = ""
        if self._settings.password_from is not None:
            password = await self._secrets.read(self._settings.password_from)
        message = make_message(notification, self._settings.sender, recipients)
        if self._thread is not None and self._thread.is_alive():
            raise errors.Transient(f"{self._settings.host} has not finished the mail before")
        await self._run(lambda: self._deliver(message, recipients, password))

    async def close(self) -> None:
        """Leave a thread that still waits for the server behind; it does not keep the process alive."""

    async def _run(self, deliver: Callable[[], None]) -> None:
        """Run in a daemon thread with a limit for the whole dialogue: a server may answer byte by byte."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def finish(error: BaseException | None) -> None:
            if not done.done():
                done.set_result(None) if error is None else done.set_exception(error)

        def work() -> None:
            error: BaseException | None = None
            try:
                deliver()
            except Exception as exc:  # noqa: BLE001 -- raised again in the loop
                error = exc
            try:
                loop.call_soon_threadsafe(finish, error)
            except RuntimeError:
                # The loop has ended meanwhile.
                return

        self._thread = threading.Thread(target=work, name=f"mail {self._settings.name}", daemon=True)
        self._thread.start()
        try:
            async with asyncio.timeout(3 * self._settings.timeout_seconds):
                await done
        except TimeoutError as exc:
            raise errors.Transient(f"{self._settings.host} did not take the mail in time") from exc

    def _deliver(self, message: EmailMessage, recipients: Sequence[str], password: str) -> None:
        settings = self._settings
        try:
            with smtplib.SMTP(settings.host, settings.port, timeout=settings.timeout_seconds) as server:
                if settings.start_tls:
                    server.starttls(context=ssl.create_default_context(cafile=settings.ca_file or None))
                if password:
                    server.login(settings.username or settings.sender, password)
                refused = server.send_message(message, settings.sender, list(recipients))
        except smtplib.SMTPException as exc:
            raise _translate(settings.host, exc) from exc
        except ssl.SSLCertVerificationError as exc:
            raise errors.Permanent(f"the certificate of {settings.host} is not trusted: set caFile") from exc
        except (OSError, ValueError) as exc:
            raise errors.Transient(f"cannot reach {settings.host}:{settings.port}: {exc}") from exc
        if refused:
            # The others have the mail: sending it again would repeat it for them.
            _log.warning("recipients_refused", channel=settings.name, refused=len(refused), recipients=len(recipients))


def make_message(notification: Notification, sender: str, recipients: Sequence[str]) -> EmailMessage:
    """Return the mail. Its id is the same in every attempt, so that a reader sees it once."""
    message = EmailMessage()
    title = " ".join(_clean(notification.title).split())
    message["Subject"] = f"[KGWE {notification.severity.value}] {title}"[:_MAX_SUBJECT]
    message["From"] = sender
    message["To"] = ", ".join(recipients)
    message["Date"] = formatdate(notification.at_s)
    message["Message-ID"] = f"<{notification.id}@kgwe>"
    # Out-of-office replies would come back to KGWE.
    message["Auto-Submitted"] = "auto-generated"
    lines = [notification.text, "", f"About: {notification.subject}", f"Kind: {notification.kind}"]
    lines += [f"{link.title}: {link.url}" for link in notification.links]
    message.set_content(_clean("\n".join(lines)) + "\n")
    return message


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _translate(host: str, exc: smtplib.SMTPException) -> errors.KgweError:
    if isinstance(exc, smtplib.SMTPRecipientsRefused):
        codes = [code for code, _ in exc.recipients.values()]
        text = f"{host} refused the recipients: {', '.join(str(code) for code in codes)}"
        return errors.Permanent(text) if min(codes, default=_FINAL) >= _FINAL else errors.Transient(text)
    if isinstance(exc, smtplib.SMTPResponseException):
        answer = exc.smtp_error.decode("utf-8", "replace") if isinstance(exc.smtp_error, bytes) else exc.smtp_error
        text = f"{host} answered {exc.smtp_code}: {' '.join(answer.split())}"
        return errors.Permanent(text) if exc.smtp_code >= _FINAL else errors.Transient(text)
    if isinstance(exc, smtplib.SMTPNotSupportedError):
        return errors.Permanent(f"{host} has no STARTTLS or login: {exc}")
    return errors.Transient(f"{host}: {exc}")

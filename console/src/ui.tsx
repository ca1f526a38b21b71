/** Parts that pages are made of. */
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { ApiError } from "./api";
import type { Loaded } from "./live";

export function Head({ title, sub, children }: { title: ComponentChildren; sub?: ComponentChildren; children?: ComponentChildren }) {
  const ref = useRef<HTMLHeadingElement>(null);
  useEffect(() => { document.title = `${ref.current?.textContent ?? ""} · KGWE`; });
  return <div class="head"><div><h1 ref={ref}>{title}</h1>{sub && <p class="sub">{sub}</p>}</div><div class="row">{children}</div></div>;
}

export function Card({ title, tools, children, width = "w12" }: { title?: ComponentChildren; tools?: ComponentChildren; children: ComponentChildren; width?: string }) {
  return <section class={`card ${width}`}>{(title || tools) && <div class="card-head">{title && <h2>{title}</h2>}{tools}</div>}{children}</section>;
}

export function Stat({ label, value, hint, children, to }: { label: string; value: ComponentChildren; hint?: ComponentChildren; children?: ComponentChildren; to?: string }) {
  const label_ = to ? <a href={to}>{label}</a> : label;
  return <section class="card stat w3"><div class="label">{label_}</div><div class="value">{value}</div>{children}{hint && <div class="hint">{hint}</div>}</section>;
}

export function Bar({ parts, label }: { parts: { share: number; step: number }[]; label: string }) {
  return <div class="bar" role="img" aria-label={label}>{parts.map((each) => <i class={`f${each.step}`} style={{ width: `${Math.min(Math.max(each.share, 0), 1) * 100}%` }} />)}</div>;
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return <div class="empty"><h2>{title}</h2><p>{children}</p></div>;
}

export function Problem({ error, retry }: { error: ApiError; retry?: () => void }) {
  return <div class="notice error" role="alert"><div class="row between"><strong>{error.title}</strong>{retry && <button class="button small" onClick={retry}>Try again</button>}</div><p>{error.message}</p></div>;
}

/** Shows what was loaded, or why there is nothing. Old data stays visible while an error lasts. */
export function Show<T>({ of, children }: { of: Loaded<T>; children: (data: T) => ComponentChildren }) {
  return <>
    {of.error && <Problem error={of.error} retry={of.reload} />}
    {of.data !== null ? children(of.data) : !of.error && <div class="row muted"><div class="spin" /> Loading …</div>}
  </>;
}

const TONES: Record<string, string> = { Running: "good", Succeeded: "good", Healthy: "good", Pending: "warn", Scheduling: "warn", Waiting: "warn", Scheduled: "info", Suspended: "", Failed: "bad", Unhealthy: "bad", Degraded: "warn", Unknown: "warn" };
export function Badge({ children, tone }: { children: string; tone?: string }) {
  return <span class={`badge ${tone ?? TONES[children] ?? ""}`}>{children}</span>;
}

export interface Column<T> { title: string; of: (row: T) => ComponentChildren; num?: boolean; label?: boolean }
export function Table<T>({ rows, columns, name, keyOf }: { rows: T[]; columns: Column<T>[]; name: string; keyOf: (row: T) => string }) {
  return <div class="table-wrap"><table class="cards"><caption class="visually-hidden">{name}</caption>
    <thead><tr>{columns.map((each) => <th scope="col" class={each.num ? "num" : ""}>{each.title}</th>)}</tr></thead>
    <tbody>{rows.map((row) => <tr key={keyOf(row)}>{columns.map((each) => {
      const content = each.of(row);
      const props = each.label === false || content === "" || content == null ? {} : { "data-label": each.title };
      return <td class={each.num ? "num" : ""} {...props}>{content}</td>;
    })}</tr>)}</tbody></table></div>;
}

export function Copy({ text }: { text: string }) {
  const [done, setDone] = useState(false);
  useEffect(() => { if (!done) return; const timer = setTimeout(() => setDone(false), 1500); return () => clearTimeout(timer); }, [done]);
  return <div class="command"><code>{text}</code><button class="button small" onClick={() => void navigator.clipboard?.writeText(text).then(() => setDone(true))}>{done ? "Copied" : "Copy"}</button></div>;
}

export function money(value: number | string | null | undefined, digits = 2): string {
  if (value === null || value === undefined || value === "") return "unknown";
  return Number(value).toLocaleString("en-US", { style: "currency", currency: "USD", minimumFractionDigits: digits, maximumFractionDigits: digits });
}
export const count = (value: number): string => value.toLocaleString("en-US", { maximumFractionDigits: 2 });
export const plural = (value: number, one: string, many = `${one}s`): string => `${count(value)} ${value === 1 ? one : many}`;
export const percent = (value: number): string => `${Math.round(value * 100)} %`;

const STEPS: [number, string][] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
export function span(seconds: number): string {
  const size = Math.abs(seconds);
  for (const [length, unit] of STEPS) if (size >= length) return `${Math.floor(size / length)} ${unit}`;
  return "0 s";
}
export function ago(time: string | undefined, now = Date.now()): string {
  if (!time) return "";
  const passed = (now - Date.parse(time)) / 1000;
  if (!Number.isFinite(passed)) return "";
  if (Math.abs(passed) < 2) return "now";
  return passed >= 0 ? `${span(passed)} ago` : `in ${span(-passed)}`;
}
export function Ago({ time }: { time: string | undefined }) {
  const [, tick] = useState(0);
  useEffect(() => { const timer = setInterval(() => tick((value) => value + 1), 10_000); return () => clearInterval(timer); }, []);
  return time ? <time dateTime={time} title={new Date(time).toLocaleString()}>{ago(time)}</time> : <></>;
}
/** How long something has lasted. */
export function Age({ time }: { time: string | undefined }) {
  const [, tick] = useState(0);
  useEffect(() => { const timer = setInterval(() => tick((value) => value + 1), 10_000); return () => clearInterval(timer); }, []);
  return time ? <time dateTime={time} title={new Date(time).toLocaleString()}>{span(Math.max(Date.now() - Date.parse(time), 0) / 1000)}</time> : <></>;
}

export function Pager({ next, first, more }: { next: string | undefined; first: boolean; more: (mark: string) => void }) {
  if (!next && first) return <></>;
  return <div class="row">{!first && <button class="button small" onClick={() => more("")}>First page</button>}{next && <button class="button small" onClick={() => more(next)}>Next page</button>}</div>;
}

export function Search({ value, change, label }: { value: string; change: (text: string) => void; label: string }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  useEffect(() => { if (text === value) return; const timer = setTimeout(() => change(text), 250); return () => clearTimeout(timer); }, [text]);
  return <input class="field" type="search" placeholder={label} aria-label={label} value={text} onInput={(event) => setText(event.currentTarget.value)} />;
}

export function Select({ value, options, change, label }: { value: string; options: [string, string][]; change: (text: string) => void; label: string }) {
  return <label class="row small"><span class="muted">{label}</span><select class="field" value={value} onChange={(event) => change(event.currentTarget.value)}>{options.map(([key, text]) => <option value={key} selected={key === value}>{text}</option>)}</select></label>;
}

/** The fleet, kept up to date by one stream; and news for lists that load themselves again. */
import { useEffect, useReducer, useState } from "preact/hooks";
import { ApiError, call, type Fleet, type Node } from "./api";

type Listener = () => void;
const listeners = new Set<Listener>();
const news = new Map<string, Set<Listener>>();
export const fleet = { levels: [] as string[], nodes: new Map<string, Node>(), complete: false, loaded: false, version: -1, connected: false, error: null as ApiError | null };
export const history: { at: number; held: number; total: number }[] = [];
let source: EventSource | null = null;
let pending: Delta[] = [];
let loading = false;
let frame = 0;

interface Delta { version: number; nodes?: Node[]; gone?: string[]; lists?: string[] }

function tell(): void {
  if (frame) return;
  frame = requestAnimationFrame(() => { frame = 0; listeners.forEach((each) => each()); });
}

export function gpuUse(gpu: Node["gpus"][number]): number {
  if (!gpu.slices?.length) return (gpu.milli ?? 0) / 1000;
  const size = gpu.slices.reduce((sum, each) => sum + each.size, 0);
  return gpu.slices.reduce((sum, each) => sum + (each.pod ? each.size : 0), 0) / Math.max(size, 8);
}

function apply(delta: Delta): void {
  if (delta.version <= fleet.version) return;
  if (delta.version !== fleet.version + 1) { void load(); return; }
  fleet.version = delta.version;
  for (const node of delta.nodes ?? []) fleet.nodes.set(node.name, node);
  for (const name of delta.gone ?? []) fleet.nodes.delete(name);
  for (const list of delta.lists ?? []) news.get(list)?.forEach((each) => each());
  if (delta.nodes || delta.gone) news.get("fleet")?.forEach((each) => each());
  performance.mark("kgwe-update");
  tell();
}

async function load(): Promise<void> {
  if (loading) return;
  loading = true;
  try {
    const found = await call<Fleet>("/api/v1/fleet");
    fleet.levels = found.levels;
    fleet.nodes = new Map(found.nodes.map((each) => [each.name, each]));
    fleet.complete = found.complete;
    fleet.version = found.version;
    fleet.loaded = true;
    fleet.error = null;
    const late = pending;
    pending = [];
    loading = false;
    late.forEach(apply);
    news.forEach((each) => each.forEach((one) => one()));
  } catch (error) {
    fleet.error = error instanceof ApiError ? error : new ApiError(0, "Error", String(error));
  } finally {
    loading = false;
    tell();
  }
}

export function connect(): void {
  if (source) return;
  source = new EventSource("/api/v1/stream");
  source.addEventListener("hello", () => { fleet.connected = true; pending = []; void load(); });
  source.addEventListener("change", (event) => {
    const delta = JSON.parse((event as MessageEvent<string>).data) as Delta;
    if (loading) pending.push(delta);
    else apply(delta);
  });
  source.addEventListener("end", () => { disconnect(); setTimeout(connect, 500); });
  source.onerror = () => {
    fleet.connected = false;
    tell();
    if (source?.readyState === EventSource.CLOSED) { disconnect(); void call("/api/v1/session").catch(() => undefined); setTimeout(connect, 3000); }
  };
}

export function disconnect(): void { source?.close(); source = null; fleet.connected = false; tell(); }

export function useFleet(): typeof fleet {
  const [, update] = useReducer((count: number) => count + 1, 0);
  useEffect(() => { const hear = () => update(undefined as never); listeners.add(hear); return () => { listeners.delete(hear); }; }, []);
  return fleet;
}

export function onNews(list: string, hear: Listener): () => void {
  const found = news.get(list) ?? new Set<Listener>();
  news.set(list, found.add(hear));
  return () => { found.delete(hear); };
}

export interface Loaded<T> { data: T | null; error: ApiError | null; loading: boolean; reload: () => void }

/** Loads a path, again when the path changes, when `lists` have news, and after errors. */
export function useApi<T>(path: string | null, lists: string[] = [], everyMs = 0): Loaded<T> {
  const [state, setState] = useState<{ path: string | null; data: T | null; error: ApiError | null; loading: boolean }>({ path, data: null, error: null, loading: true });
  const [turn, again] = useReducer((count: number) => count + 1, 0);
  useEffect(() => {
    if (path === null) return;
    const stop = new AbortController();
    let timer = 0;
    call<T>(path, { signal: stop.signal }).then(
      (data) => { setState({ path, data, error: null, loading: false }); if (everyMs) timer = window.setTimeout(() => again(undefined as never), everyMs); },
      (error) => {
        if (error instanceof DOMException) return;
        const told = error instanceof ApiError ? error : new ApiError(0, "Error", String(error));
        setState((old) => ({ path, data: old.path === path ? old.data : null, error: told, loading: false }));
        if (told.status === 0 || told.status === 429 || told.status >= 500) timer = window.setTimeout(() => again(undefined as never), 5000);
      },
    );
    return () => { stop.abort(); clearTimeout(timer); };
  }, [path, turn]);
  useEffect(() => {
    let timer = 0;
    const hear = () => { if (!timer) timer = window.setTimeout(() => { timer = 0; again(undefined as never); }, 1000); };
    const ends = lists.map((each) => onNews(each, hear));
    return () => { ends.forEach((end) => end()); clearTimeout(timer); };
  }, [lists.join()]);
  const same = state.path === path;
  return { data: same ? state.data : null, error: same ? state.error : null, loading: same ? state.loading : true, reload: () => again(undefined as never) };
}

/** Requests to the console's API: the only source of what pages show. */
export interface Slice { profile: string; start: number; size: number; pod?: string }
export interface Gpu { health?: string; reason?: string; pods?: string[]; milli?: number; reserved?: string; slices?: Slice[]; island?: number }
export interface Node {
  name: string; gpus: Gpu[]; path?: string[]; nvlink?: string; model?: string; pool?: string; instanceType?: string;
  capacityType?: string; zone?: string; ready?: boolean; cordoned?: boolean; fault?: string; pricePerHour?: number;
}
export interface Fleet { version: number; levels: string[]; nodes: Node[]; complete: boolean }
export interface Work {
  kind: string; namespace: string; name: string; phase: string; group?: string; gpus?: string; gpusHeld?: number; pods?: number;
  priority?: number; type?: string; created?: string; started?: string; ended?: string; nodes?: string; nodeNames?: string[];
  domain?: string; score?: number; message?: string; reason?: string; estimatedStart?: [string, string]; advice?: string; ratePerHour?: number;
}
export interface WorkList { items: Work[]; total: number; phases: Record<string, number>; namespaces: string[]; continue?: string }
export interface Alert { level: string; title: string; text: string; link: string }
export interface FleetUse {
  nodes: number; nodesReady: number; gpus: number; held: number; unusable: number; free: number | null; unpriced: number;
  models: { model: string; total: number; held: number; unusable: number }[]; fleetPerHour: number | null; heldPerHour: number | null;
}
export interface Overview { phases: Record<string, number>; waiting: Work[]; alerts: Alert[]; fleet: FleetUse | null }
export interface Placed { seats: { node: string; cards?: number[]; gpus?: string[]; pod?: string; phase?: string }[]; domain?: string; score?: number; parts?: Record<string, number>; gbPerS?: number; why?: string[] }
export interface Explanation {
  kind: string; namespace: string; name: string; state: string; summary: string; asked?: string[]; placed?: Placed; wouldGo?: Placed;
  waiting?: { reason: string; message: string; binding?: string; hopeless?: boolean; fix?: string; best?: { level: string; domain: string; room: number; needed: number; short: number };
    levels?: string[]; nodes?: { verdict: string; count: number; examples?: string[]; text?: string }[]; changes?: { kind: string; text: string; stops?: string[] }[];
    holders?: { name: string; gpus: number; until?: string }[]; freeBy?: string };
  turn?: { place: number; of: number; ahead?: string[] }; estimatedStart?: [string, string]; gang?: { name: string; dialect: string; members: number; missing?: number; problem?: string };
  said?: { type: string; status: string; reason?: string; message?: string; since?: string }[]; events?: { reason: string; message: string; last?: string }[];
  problems?: string[]; warnings?: string[]; cuts?: string[];
}
export interface WhatIf { changes: string[]; gpus: { nodes: number; cards: number; free: number }; results: Explanation[]; displaced?: string[]; ignored?: string[]; warnings?: string[] }
export interface Session { user: string; groups: string[]; csrf: string }

/** What went wrong, in words, and what to do. */
export class ApiError extends Error {
  constructor(readonly status: number, readonly title: string, detail: string) { super(detail || title); }
}

let csrf = "";
export function setCsrf(value: string): void { csrf = value; }

export async function call<T>(path: string, options: { method?: string; body?: unknown; signal?: AbortSignal } = {}): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json" };
  if (options.method && options.method !== "GET") headers["X-Kgwe-Csrf"] = csrf;
  if (options.body !== undefined) headers["Content-Type"] = "application/json";
  let reply: Response;
  try {
    reply = await fetch(path, { method: options.method ?? "GET", headers, credentials: "same-origin", cache: "no-store",
      ...(options.body === undefined ? {} : { body: JSON.stringify(options.body) }), ...(options.signal ? { signal: options.signal } : {}) });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "The console does not answer", "The server may be restarting, or the network is down. This page tries again by itself.");
  }
  if (reply.ok) return (await reply.json()) as T;
  const told = await reply.json().catch(() => ({}));
  if (reply.status === 401) window.dispatchEvent(new CustomEvent("kgwe-signed-out", { detail: told.detail ?? "" }));
  throw new ApiError(reply.status, told.title ?? `HTTP ${reply.status}`, told.detail ?? "");
}

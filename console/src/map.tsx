/** The fleet on one canvas: spine, leaf, node, GPU, slice. Zoom shows more of each. */
import { useEffect, useRef, useState } from "preact/hooks";
import type { Gpu, Node } from "./api";
import { fleet, gpuUse, onNews } from "./live";
import { count, money, percent } from "./ui";

export type Paint = "use" | "namespace" | "health" | "model" | "cost";
interface Box { x: number; y: number; w: number; h: number }
interface Group extends Box { name: string; depth: number }
interface Place extends Box { node: Node; cols: number; rows: number }
interface Layout { groups: Group[]; places: Place[]; w: number; h: number }

const CELL = 9, GAP = 1.5, PAD = 3, NODE_GAP = 6, HEAD = 14, LEAF_PAD = 8, LEAF_GAP = 10;

function columns(gpus: number): number { return gpus <= 2 ? gpus : gpus <= 4 ? 2 : Math.ceil(gpus / 2); }
function nodeSize(node: Node): [number, number, number, number] {
  const n = Math.max(node.gpus.length, 1), cols = columns(n), rows = Math.ceil(n / cols);
  return [cols, rows, cols * (CELL + GAP) - GAP + 2 * PAD, rows * (CELL + GAP) - GAP + 2 * PAD];
}

/** Groups by leaf inside of spine, and packs them into rows of about the width of the canvas. */
export function layOut(nodes: Node[], aspect: number): Layout {
  const tree = new Map<string, Map<string, Node[]>>();
  for (const node of nodes) {
    const [leaf, spine] = [node.path?.[0] || "no leaf", node.path?.[1] || "no spine"];
    const leaves = tree.get(spine) ?? new Map<string, Node[]>();
    tree.set(spine, leaves);
    (leaves.get(leaf) ?? leaves.set(leaf, []).get(leaf)!).push(node);
  }
  let best: Layout | null = null;
  for (let width = 260; width < 9000; width *= 1.18) {
    const found = flow(tree, width);
    if (!best || Math.abs(Math.log(found.w / found.h / aspect)) < Math.abs(Math.log(best.w / best.h / aspect))) best = found;
  }
  return best ?? { groups: [], places: [], w: 1, h: 1 };
}

function flow(tree: Map<string, Map<string, Node[]>>, width: number): Layout {
  const groups: Group[] = [], places: Place[] = [];
  let x = 0, y = 0, rowHeight = 0, most = 0;
  for (const [spine, leaves] of [...tree].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }))) {
    const inner: { group: Group; places: Place[] }[] = [];
    let lx = LEAF_PAD, ly = HEAD + LEAF_PAD, lrow = 0, lmost = 0;
    for (const [leaf, nodes] of [...leaves].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }))) {
      const perRow = nodes.length <= 4 ? nodes.length : Math.min(Math.ceil(Math.sqrt(nodes.length * 1.2)), 8);
      let nx = LEAF_PAD, ny = HEAD + 4, nrow = 0, w = 0;
      const own: Place[] = [];
      nodes.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true })).forEach((node, number) => {
        const [cols, rows, nw, nh] = nodeSize(node);
        if (number && number % perRow === 0) { nx = LEAF_PAD; ny += nrow + NODE_GAP; nrow = 0; }
        own.push({ node, cols, rows, x: nx, y: ny, w: nw, h: nh });
        nx += nw + NODE_GAP; nrow = Math.max(nrow, nh); w = Math.max(w, nx - NODE_GAP + LEAF_PAD);
      });
      const box: Group = { name: leaf, depth: 1, x: 0, y: 0, w: Math.max(w, 70), h: ny + nrow + LEAF_PAD };
      if (lx > LEAF_PAD && lx + box.w > width) { lx = LEAF_PAD; ly += lrow + LEAF_GAP; lrow = 0; }
      box.x = lx; box.y = ly;
      inner.push({ group: box, places: own });
      lx += box.w + LEAF_GAP; lrow = Math.max(lrow, box.h); lmost = Math.max(lmost, lx - LEAF_GAP + LEAF_PAD);
    }
    const whole: Group = { name: spine, depth: 0, x: 0, y: 0, w: Math.max(lmost, 90), h: ly + lrow + LEAF_PAD };
    if (x > 0 && x + whole.w > width) { x = 0; y += rowHeight + LEAF_GAP; rowHeight = 0; }
    whole.x = x; whole.y = y;
    groups.push(whole);
    for (const each of inner) {
      each.group.x += x; each.group.y += y;
      groups.push(each.group);
      for (const place of each.places) { place.x += each.group.x; place.y += each.group.y; places.push(place); }
    }
    x += whole.w + LEAF_GAP; rowHeight = Math.max(rowHeight, whole.h); most = Math.max(most, x - LEAF_GAP);
  }
  return { groups, places, w: Math.max(most, 1), h: Math.max(y + rowHeight, 1) };
}

// --- colours ---------------------------------------------------------------------------------------------

interface Colours { step: string[]; free: string; line: string; text: string; muted: string; surface: string; raised: string; hatch: string; bad: string; accent: string }
function readColours(): Colours {
  const style = getComputedStyle(document.documentElement);
  const of = (name: string) => style.getPropertyValue(name).trim();
  return { step: [1, 2, 3, 4, 5, 6, 7, 8].map((n) => of(`--step-${n}`)), free: of("--free"), line: of("--line"), text: of("--text"), muted: of("--muted"), surface: of("--surface"), raised: of("--raised"), hatch: of("--hatch"), bad: of("--step-6"), accent: of("--accent") };
}

/** Names get steps in their order, so that colours stay while a page is open. Beyond seven they share the last. */
export function assignSteps(names: Iterable<string>): Map<string, number> {
  const sorted = [...new Set(names)].sort();
  return new Map(sorted.map((name, number) => [name, number < 7 ? number + 1 : 8]));
}
export function namespacesOf(nodes: Iterable<Node>): Set<string> {
  const found = new Set<string>();
  for (const node of nodes) for (const gpu of node.gpus) for (const pod of gpu.pods ?? []) found.add(pod.split("/")[0]!);
  return found;
}
export function modelsOf(nodes: Iterable<Node>): Set<string> { const found = new Set<string>(); for (const node of nodes) found.add(node.model || "unknown"); return found; }
export const isBad = (gpu: Gpu): boolean => gpu.health === "Unhealthy" || gpu.health === "Unknown";

function gpuColour(paint: Paint, node: Node, gpu: Gpu, pod: string | undefined, steps: Map<string, number>, colours: Colours, dearest: number): string {
  const step = (number: number) => colours.step[number - 1]!;
  if (paint === "health") return isBad(gpu) ? step(6) : gpu.health === "Degraded" ? step(2) : step(3);
  if (paint === "model") return step(steps.get(node.model || "unknown") ?? 8);
  if (paint === "cost") {
    if (node.pricePerHour === undefined) return colours.hatch;
    const share = node.pricePerHour / Math.max(node.gpus.length, 1) / Math.max(dearest, 0.01);
    return step(share > 0.75 ? 6 : share > 0.45 ? 2 : share > 0.2 ? 5 : 3);
  }
  if (pod) return paint === "namespace" ? step(steps.get(pod.split("/")[0]!) ?? 8) : step(1);
  return gpu.reserved ? step(5) : colours.free;
}

// --- the component ---------------------------------------------------------------------------------------

interface Hit { node: Node; gpu: number; slice?: number }
export interface MapProps {
  paint: Paint; search?: string; selected?: string; marked?: Set<string>; tall?: boolean; interactive?: boolean;
  onSelect?: (node: string) => void;
}

export function FleetMap(props: MapProps) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const state = useRef({ layout: null as Layout | null, names: "", scale: 1, x: 0, y: 0, fit: true, drawn: 0 });
  const latest = useRef(props);
  latest.current = props;
  const [tip, setTip] = useState<{ x: number; y: number; hit: Hit } | null>(null);
  const interactive = props.interactive !== false;

  const plan = () => {
    const at = canvas.current, s = state.current;
    if (!at) return;
    const nodes = [...fleet.nodes.values()];
    const names = nodes.map((each) => `${each.name}|${each.path?.join()}|${each.gpus.length}`).join();
    if (names !== s.names || !s.layout) {
      s.names = names;
      s.layout = layOut(nodes, Math.max(at.clientWidth, 1) / Math.max(at.clientHeight, 1));
      s.fit = true;
    } else for (const place of s.layout.places) place.node = fleet.nodes.get(place.node.name) ?? place.node;
    if (s.fit) fitView();
  };
  const fitView = () => {
    const at = canvas.current, s = state.current;
    if (!at || !s.layout) return;
    s.scale = Math.min((at.clientWidth - 24) / s.layout.w, (at.clientHeight - 24) / s.layout.h, 3);
    s.x = (at.clientWidth - s.layout.w * s.scale) / 2;
    s.y = (at.clientHeight - s.layout.h * s.scale) / 2;
    s.fit = true;
  };
  const draw = () => {
    const s = state.current;
    if (s.drawn) return;
    s.drawn = requestAnimationFrame(() => { s.drawn = 0; if (canvas.current && s.layout) paintMap(canvas.current, s, latest.current); });
  };

  useEffect(() => {
    const again = () => { plan(); draw(); };
    again();
    const end = onNews("fleet", again);
    const watch = new ResizeObserver(() => { state.current.layout = null; again(); });
    if (canvas.current) watch.observe(canvas.current);
    const theme = new MutationObserver(draw);
    theme.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    return () => { end(); watch.disconnect(); theme.disconnect(); };
  }, []);
  useEffect(() => { plan(); draw(); });

  const zoom = (factor: number, cx?: number, cy?: number) => {
    const at = canvas.current, s = state.current;
    if (!at) return;
    const px = cx ?? at.clientWidth / 2, py = cy ?? at.clientHeight / 2;
    const scale = Math.min(Math.max(s.scale * factor, 0.05), 12);
    s.x = px - ((px - s.x) * scale) / s.scale;
    s.y = py - ((py - s.y) * scale) / s.scale;
    s.scale = scale; s.fit = false;
    draw();
  };
  useEffect(() => {
    const at = canvas.current;
    if (!at || !interactive) return;
    const wheel = (event: WheelEvent) => { event.preventDefault(); zoom(Math.exp(-event.deltaY * 0.0015), event.offsetX, event.offsetY); };
    at.addEventListener("wheel", wheel, { passive: false });
    return () => at.removeEventListener("wheel", wheel);
  }, []);

  const pointers = useRef(new Map<number, { x: number; y: number }>());
  const moved = useRef(0);
  const locate = (event: PointerEvent): Hit | null => findHit(state.current, event.offsetX, event.offsetY);
  const down = (event: PointerEvent) => { pointers.current.set(event.pointerId, { x: event.offsetX, y: event.offsetY }); moved.current = 0; (event.currentTarget as Element).setPointerCapture(event.pointerId); };
  const move = (event: PointerEvent) => {
    const known = pointers.current, last = known.get(event.pointerId), s = state.current;
    if (!last) { const hit = locate(event); setTip(hit ? { x: event.offsetX, y: event.offsetY, hit } : null); return; }
    const next = { x: event.offsetX, y: event.offsetY };
    if (known.size === 2) {
      const other = [...known].find(([id]) => id !== event.pointerId)![1];
      const before = Math.hypot(last.x - other.x, last.y - other.y), after = Math.hypot(next.x - other.x, next.y - other.y);
      if (before > 0) zoom(after / before, (next.x + other.x) / 2, (next.y + other.y) / 2);
    } else { s.x += next.x - last.x; s.y += next.y - last.y; s.fit = false; draw(); }
    moved.current += Math.hypot(next.x - last.x, next.y - last.y);
    known.set(event.pointerId, next);
    setTip(null);
  };
  const up = (event: PointerEvent) => {
    pointers.current.delete(event.pointerId);
    if (moved.current < 5) { const hit = locate(event); if (hit) latest.current.onSelect?.(hit.node.name); }
  };
  const keys = (event: KeyboardEvent) => {
    const s = state.current, step = 60;
    const moves: Record<string, [number, number]> = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    const by = moves[event.key];
    if (by) { s.x += by[0]; s.y += by[1]; s.fit = false; draw(); }
    else if (event.key === "+" || event.key === "=") zoom(1.3);
    else if (event.key === "-") zoom(1 / 1.3);
    else if (event.key === "0") { fitView(); draw(); }
    else return;
    event.preventDefault();
  };

  const total = fleet.nodes.size;
  return <div class={`map ${props.tall ? "tall" : "short"}`}>
    <canvas ref={canvas} tabIndex={interactive ? 0 : -1} role="img"
      aria-label={`Map of ${total} nodes by network position. The table of nodes shows the same. Keys: arrows move, plus and minus zoom, 0 fits.`}
      {...(interactive ? { onPointerDown: down, onPointerMove: move, onPointerUp: up, onPointerCancel: up, onPointerLeave: () => setTip(null), onKeyDown: keys } : { onClick: (event: MouseEvent) => { const hit = findHit(state.current, event.offsetX, event.offsetY); if (hit) props.onSelect?.(hit.node.name); } })} />
    {interactive && <div class="tools">
      <button class="button small" aria-label="Zoom in" onClick={() => zoom(1.4)}>+</button>
      <button class="button small" aria-label="Zoom out" onClick={() => zoom(1 / 1.4)}>−</button>
      <button class="button small" onClick={() => { fitView(); draw(); }}>Fit</button>
    </div>}
    {tip && <Tip {...tip} />}
  </div>;
}

function Tip({ x, y, hit }: { x: number; y: number; hit: Hit }) {
  const gpu = hit.node.gpus[hit.gpu];
  const slice = hit.slice === undefined ? undefined : gpu?.slices?.[hit.slice];
  const held = hit.node.gpus.reduce((sum, each) => sum + gpuUse(each), 0);
  return <div class="tip" style={{ left: `${Math.min(x + 14, 9999)}px`, top: `${y + 14}px` }}>
    <strong>{hit.node.name}</strong>{gpu ? ` · GPU ${hit.gpu}` : ""}{slice ? ` · ${slice.profile}` : ""}
    <div>{hit.node.model}</div>
    <div>{slice ? slice.pod ?? "free" : gpu?.pods?.length ? gpu.pods.join(", ") : gpu?.reserved ? `reserved for ${gpu.reserved}` : fleet.complete ? "free" : "no pod of yours"}</div>
    {gpu?.health && <div>{gpu.health}: {gpu.reason}</div>}
    <div>{count(held)} of {hit.node.gpus.length} GPUs held{hit.node.pricePerHour === undefined ? "" : ` · ${money(hit.node.pricePerHour)} per hour`}</div>
  </div>;
}

function findHit(s: { layout: Layout | null; scale: number; x: number; y: number }, px: number, py: number): Hit | null {
  const x = (px - s.x) / s.scale, y = (py - s.y) / s.scale;
  const place = s.layout?.places.find((each) => x >= each.x && x <= each.x + each.w && y >= each.y && y <= each.y + each.h);
  if (!place) return null;
  const col = Math.floor((x - place.x - PAD) / (CELL + GAP)), row = Math.floor((y - place.y - PAD) / (CELL + GAP));
  const gpu = col >= 0 && row >= 0 && col < place.cols && row * place.cols + col < place.node.gpus.length ? row * place.cols + col : -1;
  const hit: Hit = { node: place.node, gpu };
  const slices = place.node.gpus[gpu]?.slices;
  if (slices?.length) {
    const at = ((y - place.y - PAD - row * (CELL + GAP)) / CELL) * 8;
    const index = slices.findIndex((each) => at >= each.start && at < each.start + each.size);
    if (index >= 0) hit.slice = index;
  }
  return hit;
}

function paintMap(canvas: HTMLCanvasElement, s: { layout: Layout | null; scale: number; x: number; y: number }, props: MapProps): void {
  const context = canvas.getContext("2d"), layout = s.layout;
  if (!context || !layout) return;
  const ratio = window.devicePixelRatio || 1, w = canvas.clientWidth, h = canvas.clientHeight;
  if (canvas.width !== Math.round(w * ratio) || canvas.height !== Math.round(h * ratio)) { canvas.width = Math.round(w * ratio); canvas.height = Math.round(h * ratio); }
  const colours = readColours(), k = s.scale;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, w, h);
  const names = props.paint === "namespace" ? namespacesOf(fleet.nodes.values()) : props.paint === "model" ? modelsOf(fleet.nodes.values()) : [];
  const steps = assignSteps(names);
  let dearest = 0;
  for (const node of fleet.nodes.values()) dearest = Math.max(dearest, (node.pricePerHour ?? 0) / Math.max(node.gpus.length, 1));
  const wanted = (props.search ?? "").toLowerCase();
  context.textBaseline = "top";
  for (const group of layout.groups) {
    const x = group.x * k + s.x, y = group.y * k + s.y, gw = group.w * k, gh = group.h * k;
    if (x > w || y > h || x + gw < 0 || y + gh < 0) continue;
    context.fillStyle = group.depth ? colours.surface : colours.raised;
    context.strokeStyle = colours.line;
    context.beginPath(); context.roundRect(x, y, gw, gh, Math.min(8, 6 * k + 2)); context.fill(); context.stroke();
    const size = Math.min(Math.max(9 * k, 0), 13);
    if (size >= 8 && gw > 40) {
      context.font = `${group.depth ? 500 : 650} ${size}px system-ui, sans-serif`;
      context.fillStyle = group.depth ? colours.muted : colours.text;
      context.fillText(shorten(context, group.name, gw - 12), x + 6, y + Math.max((HEAD * k - size) / 2, 2));
    }
  }
  for (const place of layout.places) {
    const x = place.x * k + s.x, y = place.y * k + s.y, nw = place.w * k, nh = place.h * k, node = place.node;
    if (x > w || y > h || x + nw < 0 || y + nh < 0) continue;
    const found = !wanted || `${node.name} ${node.model} ${node.pool} ${node.path?.join(" ")} ${node.gpus.map((each) => each.pods?.join(" ")).join(" ")}`.toLowerCase().includes(wanted);
    const dim = !found || (props.marked?.size && !props.marked.has(node.name));
    context.globalAlpha = dim ? 0.18 : 1;
    context.fillStyle = colours.raised;
    context.beginPath(); context.roundRect(x, y, nw, nh, Math.min(4, 2.5 * k)); context.fill();
    const down = node.ready === false;
    if (down || node.cordoned || node.name === props.selected || props.marked?.has(node.name)) {
      context.strokeStyle = node.name === props.selected || props.marked?.has(node.name) ? colours.accent : down ? colours.bad : colours.hatch;
      context.lineWidth = node.name === props.selected ? 3 : 2;
      context.stroke(); context.lineWidth = 1;
    }
    const cell = CELL * k;
    for (let number = 0; number < node.gpus.length; number++) {
      const gpu = node.gpus[number]!, col = number % place.cols, row = Math.floor(number / place.cols);
      const cx = x + (PAD + col * (CELL + GAP)) * k, cy = y + (PAD + row * (CELL + GAP)) * k;
      if (gpu.slices?.length && props.paint !== "health" && props.paint !== "model" && props.paint !== "cost") {
        context.fillStyle = colours.free; context.fillRect(cx, cy, cell, cell);
        for (const slice of gpu.slices) {
          context.fillStyle = gpuColour(props.paint, node, gpu, slice.pod, steps, colours, dearest);
          const top = cy + (slice.start / 8) * cell, high = (slice.size / 8) * cell;
          context.fillRect(cx, top, cell, Math.max(high - (k > 1 ? 0.8 : 0), 0.5));
          if (cell > 60) { context.fillStyle = colours.text; context.font = "10px system-ui, sans-serif"; context.fillText(slice.profile, cx + 3, top + 2); }
        }
      } else {
        const full = gpuColour(props.paint, node, gpu, gpu.pods?.[0], steps, colours, dearest), part = gpuUse(gpu);
        const isPart = gpu.pods?.length && part < 1 && (props.paint === "use" || props.paint === "namespace");
        context.fillStyle = isPart ? colours.free : full;
        context.fillRect(cx, cy, cell, cell);
        if (isPart) { context.fillStyle = full; context.fillRect(cx, cy + cell * (1 - part), cell, cell * part); }
      }
      if (gpu.health) {
        context.strokeStyle = isBad(gpu) ? colours.bad : colours.step[1]!;
        context.lineWidth = Math.max(k, 1.2); context.beginPath();
        context.moveTo(cx, cy); context.lineTo(cx + cell, cy + cell);
        if (isBad(gpu)) { context.moveTo(cx + cell, cy); context.lineTo(cx, cy + cell); }
        context.stroke(); context.lineWidth = 1;
      }
      if (cell > 46) { context.fillStyle = colours.text; context.font = "600 11px system-ui, sans-serif"; context.fillText(String(number), cx + 4, cy + cell - 15); }
    }
    if (k > 2.2) { context.fillStyle = colours.text; context.font = "600 11px system-ui, sans-serif"; context.fillText(shorten(context, node.name, nw + 10), x + 2, y + nh + 1); }
    context.globalAlpha = 1;
  }
}

function shorten(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (context.measureText(text).width <= width) return text;
  let size = text.length;
  while (size > 1 && context.measureText(`${text.slice(0, size)}…`).width > width) size--;
  return `${text.slice(0, size)}…`;
}

export function Legend({ paint }: { paint: Paint }) {
  const nodes = [...fleet.nodes.values()];
  const entries: [number, string][] = [];
  if (paint === "use") entries.push([1, "held by a pod"], [5, "reserved"], [0, fleet.complete ? "free" : "no pod of yours"]);
  if (paint === "health") entries.push([3, "healthy"], [2, "degraded"], [6, "unhealthy"]);
  if (paint === "cost") entries.push([6, "above 75 % of the dearest GPU"], [2, "above 45 %"], [5, "above 20 %"], [3, "below"]);
  if (paint === "namespace") { for (const [name, step] of assignSteps(namespacesOf(nodes))) if (step < 8) entries.push([step, name]); entries.push([0, fleet.complete ? "free" : "no pod of yours"]); if (namespacesOf(nodes).size > 7) entries.push([8, "other namespaces"]); }
  if (paint === "model") for (const [name, step] of assignSteps(modelsOf(nodes))) entries.push([step, name]);
  const held = nodes.reduce((sum, node) => sum + node.gpus.reduce((all, gpu) => all + gpuUse(gpu), 0), 0), total = nodes.reduce((sum, node) => sum + node.gpus.length, 0);
  return <div class="legend">{entries.map(([step, name]) => <span><i class={`swatch f${step}`} />{name}</span>)}<span>{count(held)} of {count(total)} GPUs held{total ? ` (${percent(held / total)})` : ""}</span></div>;
}

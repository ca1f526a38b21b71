import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { useApi } from "../live";
import { go, setQuery, type Place } from "../route";
import { Badge, Bar, Card, count, Empty, Head, money, Show, Table } from "../ui";

interface Line { name: string; cost: string; used: string; idle: string; unmeasured: string; gpuHours: number }
interface Cost { start: string; end: string; by: string; currency: string; splitMethod: string; total: string; lines: Line[]; unpricedGpuHours?: number; continue?: string; books?: { fleet: string; allocated: string; idle: string; unallocated: string; reservedIdle: string } }
interface Budget { namespace: string; name: string; spec: { limit: string; currency?: string; period?: string; enforcementPolicy?: string; unit?: string }; status: { currentSpend?: string; projectedSpend?: string; encumbered?: string; waitingWorkloads?: number } }
interface Steps { data: Record<string, { totalCost: number; start: string }>[] }
const WINDOWS: [string, string][] = [["1h", "1 hour"], ["24h", "24 hours"], ["7d", "7 days"], ["30d", "30 days"], ["month", "this month"], ["lastmonth", "last month"]];
const BY: [string, string][] = [["namespace", "namespace"], ["team", "team"], ["workload", "workload"], ["pod", "pod"], ["user", "user"], ["project", "project"], ["model", "GPU model"], ["node", "node"]];
const NEXT: Record<string, string> = { namespace: "workload", team: "namespace", workload: "pod" };
const STEP: Record<string, string> = { "1h": "5m", "24h": "1h", "7d": "6h", "30d": "1d", month: "1d", lastmonth: "1d" };

export function CostPage({ place }: { place: Place }) {
  const tab = place.query.get("tab") ?? "cost";
  return <>
    <Head title="Cost and budgets" sub="What pods cost by the cost ledger; only namespaces that you may read are counted" />
    <div class="row" role="group" aria-label="Parts"><button class="chip" aria-pressed={tab === "cost"} onClick={() => go("/cost")}>Cost</button><button class="chip" aria-pressed={tab === "budgets"} onClick={() => go("/cost?tab=budgets")}>Budgets</button></div>
    {tab === "budgets" ? <Budgets /> : <Costs place={place} />}
  </>;
}

function Costs({ place }: { place: Place }) {
  const window = place.query.get("window") ?? "24h", by = place.query.get("by") ?? "namespace", namespace = place.query.get("namespace") ?? "", team = place.query.get("team") ?? "";
  const query = new URLSearchParams({ window, by, limit: "200", ...(namespace ? { namespace } : {}), ...(team ? { team } : {}) });
  const found = useApi<Cost>(`/api/v1/cost?${query}`, [], 15_000);
  const steps = useApi<Steps>(`/allocation/compute?window=${window}&step=${STEP[window] ?? "1d"}&aggregate=namespace&includeIdle=false`, [], 30_000);
  const drill = (line: Line) => { const next = NEXT[by]; if (!next) return null; return `/cost?${new URLSearchParams({ window, by: next, ...(by === "namespace" ? { namespace: line.name } : namespace ? { namespace } : {}), ...(by === "team" ? { team: line.name } : {}) })}`; };
  return <>
    <div class="row">
      <label class="row small"><span class="muted">Window</span><select class="field" value={window} onChange={(event) => setQuery({ window: event.currentTarget.value })}>{WINDOWS.map(([key, text]) => <option value={key} selected={key === window}>{text}</option>)}</select></label>
      <label class="row small"><span class="muted">By</span><select class="field" value={by} onChange={(event) => setQuery({ by: event.currentTarget.value })}>{BY.map(([key, text]) => <option value={key} selected={key === by}>{text}</option>)}</select></label>
      {found.data?.books && <a class="button small" download href="/api/v1/cost/focus?days=30">FOCUS download (CSV)</a>}
      {(namespace || team) && <span class="badge info">{namespace ? `namespace ${namespace}` : `team ${team}`} <button class="button small" onClick={() => setQuery({ namespace: "", team: "", by: "namespace" })}>All</button></span>}
    </div>
    <Show of={found}>{(data) => { const most = Math.max(...data.lines.map((each) => Number(each.cost)), 0.000001); return <div class="grid">
      <section class="card stat w4"><div class="label">Pods cost</div><div class="value">{money(data.total)}</div><div class="hint">split method {data.splitMethod || "unknown"}, {data.currency || "USD"}{data.unpricedGpuHours ? ` · ${count(data.unpricedGpuHours)} GPU-hours have no price and are not in these costs` : ""}</div></section>
      {data.books && <section class="card stat w8"><div class="label">Fleet {money(data.books.fleet)}</div><div class="stack"><span /><Bar label="books of the fleet" parts={[{ share: Number(data.books.allocated) / Math.max(Number(data.books.fleet), 1e-9), step: 1 }, { share: Number(data.books.idle) / Math.max(Number(data.books.fleet), 1e-9), step: 2 }, { share: Number(data.books.reservedIdle) / Math.max(Number(data.books.fleet), 1e-9), step: 4 }]} />
        <div class="legend"><span><i class="swatch f1" />allocated {money(data.books.allocated)}</span><span><i class="swatch f2" />idle {money(data.books.idle)}</span><span><i class="swatch f4" />reserved idle {money(data.books.reservedIdle)}</span><span><i class="swatch f0" />unallocated {money(data.books.unallocated)}</span></div></div></section>}
      {steps.data && <Card title="Over time"><StepChart data={steps.data.data} start={Date.parse(data.start) / 1000} end={Date.parse(data.end) / 1000} /></Card>}
      <Card title={`By ${BY.find(([key]) => key === by)?.[1] ?? by}`}>{data.lines.length ? <Table name="Costs" rows={data.lines} keyOf={(each) => each.name} columns={[
        { title: "Name", of: (each) => { const to = drill(each); return to ? <a class="name" href={to}>{each.name || "(none)"}</a> : <span class="name">{each.name || "(none)"}</span>; }, label: false },
        { title: "", of: (each) => <Bar label={`${each.name}: ${money(each.cost)}`} parts={[{ share: (Number(each.used) + Number(each.unmeasured)) / most, step: 1 }, { share: Number(each.idle) / most, step: 2 }]} />, label: false },
        { title: "Cost", num: true, of: (each) => money(each.cost) }, { title: "Idle", num: true, of: (each) => Number(each.used) + Number(each.idle) > 0 ? money(each.idle) : "unknown" }, { title: "GPU hours", num: true, of: (each) => count(each.gpuHours) },
      ]} /> : <Empty title="No costs in this window">Pods that you may read held no priced GPUs.</Empty>}</Card>
    </div>; }}</Show>
  </>;
}

function StepChart({ data, start, end }: { data: Steps["data"]; start: number; end: number }) {
  const at = useRef<HTMLDivElement>(null);
  const totals = data.map((each) => Object.entries(each).filter(([name]) => !name.startsWith("__")).reduce((sum, [, line]) => sum + line.totalCost, 0));
  const length = (end - start) / Math.max(data.length, 1);
  const points = totals.map((total, number) => [Math.round(start + (number + 0.5) * length), total] as const);
  useEffect(() => {
    if (!at.current || !points.length) return;
    const style = getComputedStyle(document.documentElement), of = (name: string) => style.getPropertyValue(name).trim();
    const axis = { stroke: of("--muted"), grid: { stroke: of("--line"), width: 1 }, ticks: { stroke: of("--line"), width: 1 } };
    const chart = new uPlot({ width: at.current.clientWidth, height: 180, legend: { show: false }, cursor: { show: false }, scales: { x: { range: () => [start, end] }, y: { range: (_chart, _low, high) => [0, Math.max(high * 1.1, 0.01)] } },
      axes: [axis, { ...axis, size: 60, values: (_chart, values) => values.map((each) => money(each)) }], series: [{}, { stroke: of("--step-3"), fill: `${of("--step-3")}33`, width: 2, ...(uPlot.paths.bars ? { paths: uPlot.paths.bars({ size: [0.7, 60] }) } : {}), points: { show: false } }] },
      [points.map(([time]) => time), points.map(([, cost]) => cost)], at.current);
    const watch = new ResizeObserver(() => chart.setSize({ width: at.current?.clientWidth ?? 300, height: 180 }));
    watch.observe(at.current);
    return () => { watch.disconnect(); chart.destroy(); };
  }, [JSON.stringify(totals), data.length]);
  return points.length ? <div ref={at} class="chart" role="img" aria-label={`Cost per step, ${points.length} steps, ${money(totals.reduce((a, b) => a + b, 0))} in all`} /> : <Empty title="Nothing to draw yet" />;
}

function Budgets() {
  const found = useApi<{ budgets: Budget[] }>("/api/v1/budgets", ["budgets"]);
  return <Show of={found}>{(data) => data.budgets.length ? <div class="grid">{data.budgets.map((each) => {
    const spent = Number(each.status.currentSpend ?? 0), held = Number(each.status.encumbered ?? 0), limit = Math.max(Number(each.spec.limit), 1e-9), unit = each.spec.unit === "GPUHours" ? (value: number) => `${count(value)} GPU hours` : (value: number) => money(value);
    return <Card width="w6" title={`${each.namespace}/${each.name}`} tools={<Badge tone={spent >= limit ? "bad" : spent + held >= limit ? "warn" : "good"}>{spent >= limit ? "Spent" : spent + held >= limit ? "Spoken for" : "Within limit"}</Badge>}><div class="stack">
      <div class="row between"><span>{unit(spent)} spent{held ? `, ${unit(held)} spoken for` : ""}</span><span class="muted">of {unit(limit)} {each.spec.period?.toLowerCase()}</span></div>
      <Bar label={`${Math.round((spent / limit) * 100)} % spent`} parts={[{ share: spent / limit, step: spent >= limit ? 6 : 1 }, { share: held / limit, step: 2 }]} />
      <dl class="facts"><dt>When spent</dt><dd>{each.spec.enforcementPolicy}</dd>{each.status.projectedSpend && <><dt>Projected</dt><dd>{unit(Number(each.status.projectedSpend))}</dd></>}{each.status.waitingWorkloads ? <><dt>Waiting</dt><dd>{each.status.waitingWorkloads} because of it</dd></> : null}</dl></div></Card>; })}</div>
    : <Card><Empty title="No budgets">None that you may read. Write a GPUBudget: <code>kubectl apply -f examples/budget.yaml</code>.</Empty></Card>}</Show>;
}

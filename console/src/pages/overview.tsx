import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Overview, Work } from "../api";
import { fleet, gpuUse, useApi, useFleet } from "../live";
import { assignSteps, FleetMap, Legend, namespacesOf } from "../map";
import { go } from "../route";
import { Badge, Bar, Card, count, Empty, Head, money, percent, plural, Show, Stat } from "../ui";

interface Waste { findings: { namespace: string; pod: string; savingPerHour?: number }[]; savingPerHour: number; problem: string }

export function OverviewPage() {
  const glance = useApi<Overview>("/api/v1/overview", ["work", "budgets", "fleet"]);
  const waste = useApi<Waste>("/api/v1/waste", [], 15_000);
  useFleet();
  return <>
    <Head title="Overview" sub="The fleet now, what it costs, and what needs attention" />
    <Show of={glance}>{(data) => <Body data={data} waste={waste.data} wasteMissing={!!waste.error} />}</Show>
  </>;
}

function Body({ data, waste, wasteMissing }: { data: Overview; waste: Waste | null; wasteMissing: boolean }) {
  const use = data.fleet, running = data.phases.Running ?? 0, waiting = (data.phases.Pending ?? 0) + (data.phases.Scheduling ?? 0);
  const shares = readShares();
  const alerts = [...data.alerts, ...(waste?.findings.length ? [{ level: "warning", title: plural(waste.findings.length, "pod wastes", "pods waste") + " GPUs", text: waste.findings.slice(0, 6).map((each) => `${each.namespace}/${each.pod}`).join(", ") + (waste.findings.length > 6 ? ` and ${waste.findings.length - 6} more` : ""), link: "/waste" }] : [])];
  return <div class="grid">
    {use ? <Stat label="GPUs held" to="/fleet" value={<>{count(use.held)} <span class="muted">of {count(use.gpus)}</span></>} hint={use.free === null ? "free GPUs are not shown: you do not see all pods" : `${count(use.free)} free · ${count(use.unusable)} out of service`}>
      <Bar label={`${percent(use.held / Math.max(use.gpus, 1))} of GPUs held`} parts={[{ share: use.held / Math.max(use.gpus, 1), step: 1 }, { share: use.unusable / Math.max(use.gpus, 1), step: 6 }]} /></Stat>
      : <Stat label="Workloads" to="/workloads" value={count(Object.values(data.phases).reduce((a, b) => a + b, 0))} hint="you may not list nodes" />}
    <Stat label="Dollars per hour" to="/cost" value={use?.fleetPerHour == null ? "unknown" : money(use.fleetPerHour)} hint={use?.fleetPerHour == null ? "no price of a visible node is known" : `whole nodes; GPUs that pods hold are ${money(use.heldPerHour)} of it, by number${use.unpriced ? ` · ${plural(use.unpriced, "node has", "nodes have")} no price` : ""}`} >
      {use?.fleetPerHour ? <Bar label="part that pods hold" parts={[{ share: (use.heldPerHour ?? 0) / use.fleetPerHour, step: 3 }]} /> : null}</Stat>
    <Stat label="Waiting" to="/queue" value={count(waiting)} hint={`${plural(running, "workload")} running`} />
    <Stat label="Waste per hour" to="/waste" value={waste ? money(waste.savingPerHour) : wasteMissing ? "unknown" : "…"} hint={waste ? plural(waste.findings.length, "finding") : wasteMissing ? "no optimizer answers" : ""} />
    <Card width="w8" title="Fleet" tools={<a href="/fleet">Open the map</a>}>
      {use ? fleet.loaded ? <div class="stack"><FleetMap paint="namespace" interactive={false} onSelect={(node) => go(`/fleet?node=${encodeURIComponent(node)}`)} /><Legend paint="namespace" /></div> : <div class="row muted"><div class="spin" /> Loading …</div> : <Empty title="No nodes to show">Your rights do not include listing nodes. The ClusterRole kgwe-cluster-viewer and list of nodes show the fleet.</Empty>}
    </Card>
    <Card width="w4" title="Needs attention">
      {alerts.length ? <ul class="plain">{alerts.map((each) => <li class={`notice ${each.level}`}><a href={each.link}><strong>{each.title}</strong></a><div class="small">{each.text}</div></li>)}</ul> : <Empty title="Nothing">No node, GPU, workload or budget that you may list has a problem.</Empty>}
    </Card>
    <Card width="w5" title="Waiting longest" tools={<a href="/queue">Queue</a>}>
      {data.waiting.length ? <ul class="plain">{data.waiting.map((each) => <Waits work={each} />)}</ul> : <Empty title="Nothing waits">Every workload that you may list has its GPUs.</Empty>}
    </Card>
    <Card width="w4" title="By GPU model">
      {use ? <div class="stack">{use.models.map((each) => <div class="stack tight"><div class="row between"><span>{each.model}</span><span class="muted num">{count(each.held)} of {each.total}</span></div><Bar label={`${each.model}: ${percent(each.held / Math.max(each.total, 1))} held`} parts={[{ share: each.held / Math.max(each.total, 1), step: 1 }]} /></div>)}</div> : <Empty title="Not visible">Listing nodes is needed.</Empty>}
    </Card>
    <Card width="w3" title="By namespace">
      {shares.length ? <div class="stack">{shares.map((each) => <div class="stack tight"><div class="row between"><a href={`/workloads?namespace=${encodeURIComponent(each.name)}`}>{each.name}</a><span class="muted num">{count(each.gpus)}</span></div><Bar label={`${each.name}: ${count(each.gpus)} GPUs`} parts={[{ share: each.gpus / shares[0]!.gpus, step: each.step }]} /></div>)}</div> : <Empty title="No GPUs held" />}
    </Card>
    {use && <Card title="GPUs held since this page was opened"><UseChart /></Card>}
  </div>;
}

function Waits({ work }: { work: Work }) {
  return <li class="stack tight"><div class="row between"><a class="name" href={`/workloads/${work.namespace}/${work.name}${work.kind === "Pod" ? "?kind=pod" : ""}`}>{work.namespace}/{work.name}</a><span class="row"><span class="muted small">{work.gpus} {work.gpus === "1" ? "GPU" : "GPUs"}</span>{work.reason && <Badge tone="warn">{work.reason}</Badge>}</span></div><div class="why">{work.message}</div></li>;
}

function readShares(): { name: string; gpus: number; step: number }[] {
  const sums = new Map<string, number>();
  for (const node of fleet.nodes.values()) for (const gpu of node.gpus) {
    const pods = gpu.slices?.length ? gpu.slices.filter((each) => each.pod).map((each) => [each.pod!, each.size / 8] as const) : (gpu.pods ?? []).map((pod) => [pod, gpuUse(gpu) / gpu.pods!.length] as const);
    for (const [pod, share] of pods) { const name = pod.split("/")[0]!; sums.set(name, (sums.get(name) ?? 0) + share); }
  }
  const steps = assignSteps(namespacesOf(fleet.nodes.values()));
  return [...sums].map(([name, gpus]) => ({ name, gpus, step: steps.get(name) ?? 8 })).sort((a, b) => b.gpus - a.gpus).slice(0, 7);
}

const samples: { at: number; held: number; total: number }[] = [];
function takeSample(): void {
  if (!fleet.loaded) return;
  let held = 0, total = 0;
  for (const node of fleet.nodes.values()) { total += node.gpus.length; for (const gpu of node.gpus) held += gpuUse(gpu); }
  samples.push({ at: Date.now() / 1000, held, total });
  if (samples.length > 1800) samples.shift();
}

function UseChart() {
  const at = useRef<HTMLDivElement>(null);
  const [, tick] = useState(0);
  useEffect(() => {
    const style = getComputedStyle(document.documentElement), of = (name: string) => style.getPropertyValue(name).trim();
    const axis = { stroke: of("--muted"), grid: { stroke: of("--line"), width: 1 }, ticks: { stroke: of("--line"), width: 1 } };
    takeSample();
    const chart = new uPlot({ width: at.current!.clientWidth, height: 180, legend: { show: false }, cursor: { show: false }, scales: { x: { range: (_chart, low, high) => [Math.min(low, high - 60), high] }, y: { range: () => [0, Math.max(samples[samples.length - 1]?.total ?? 1, 1) * 1.05] } }, axes: [axis, { ...axis, size: 44 }],
      series: [{}, { stroke: of("--step-1"), fill: `${of("--step-1")}33`, width: 2, points: { show: false } }, { stroke: of("--step-8"), dash: [4, 4], width: 1.5, points: { show: false } }] }, read(), at.current!);
    const timer = setInterval(() => { takeSample(); chart.setData(read()); tick((value) => value + 1); }, 2000);
    const watch = new ResizeObserver(() => chart.setSize({ width: at.current?.clientWidth ?? 300, height: 180 }));
    watch.observe(at.current!);
    return () => { clearInterval(timer); watch.disconnect(); chart.destroy(); };
  }, []);
  const last = samples[samples.length - 1];
  return <><div ref={at} class="chart" role="img" aria-label={last ? `${count(last.held)} of ${last.total} GPUs held now` : "no samples yet"} /><div class="legend"><span><i class="swatch f1" />held</span><span><i class="swatch f8" />all GPUs</span>{samples.length < 2 && <span>Two samples make a line: it begins in some seconds.</span>}</div></>;
}
const read = (): uPlot.AlignedData => [samples.map((each) => each.at), samples.map((each) => each.held), samples.map((each) => each.total)];

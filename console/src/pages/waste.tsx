import { useApi } from "../live";
import { Ago, Badge, Bar, Card, Copy, count, Empty, Head, money, percent, plural, Show, span } from "../ui";

interface Finding { namespace: string; pod: string; state: string; gpus: number; owner?: string; wasteScore?: number; activity?: number; idleSeconds?: number; costPerHour?: number; action?: string; target?: string; savingPerHour?: number; confidence?: number; reasons?: string[]; command?: string; feasible?: boolean }
interface Waste { findings: Finding[]; savingPerHour: number; judged: string; problem: string }
interface Demand { demand: { model: string; gpus: number | null; recordedHours: number; forecasts: { hoursAhead: number; gpus?: number; lower?: number; upper?: number; reasons?: string[] }[] }[] }

export function WastePage() {
  const found = useApi<Waste>("/api/v1/waste", [], 10_000);
  const demand = useApi<Demand>("/api/v1/predictions", [], 60_000);
  return <>
    <Head title="Waste and right-sizing" sub="GPUs that pods hold and do not use, what to do, and the command for it" />
    <Show of={found}>{(data) => <div class="stack">
      {data.problem && <p class="notice warning">{data.problem}</p>}
      <div class="grid"><section class="card stat w4"><div class="label">Could be saved</div><div class="value">{money(data.savingPerHour)}</div><div class="hint">per hour, {money(data.savingPerHour * 730, 0)} per month</div></section>
        <section class="card stat w4"><div class="label">Findings</div><div class="value">{data.findings.length}</div><div class="hint">{data.judged ? <>judged <Ago time={data.judged} /></> : "the first judgement is not made yet"}</div></section>
        <section class="card stat w4"><div class="label">GPUs concerned</div><div class="value">{count(data.findings.reduce((sum, each) => sum + each.gpus, 0))}</div></section></div>
      {data.findings.length ? data.findings.map((each) => <Card title={`${each.namespace}/${each.owner?.split("/")[1] ?? each.pod}`} tools={<div class="row"><Badge tone="warn">{each.state}</Badge>{each.savingPerHour !== undefined && <Badge tone="good">{`saves ${money(each.savingPerHour)} per hour`}</Badge>}</div>}>
        <div class="grid"><div class="w6 stack"><dl class="facts"><dt>Pod</dt><dd>{each.pod}</dd><dt>GPUs</dt><dd>{count(each.gpus)}</dd>{each.activity !== undefined && <><dt>Activity</dt><dd>{percent(each.activity)}</dd></>}{each.idleSeconds !== undefined && <><dt>Idle for</dt><dd>{span(each.idleSeconds)}</dd></>}{each.costPerHour !== undefined && <><dt>Costs</dt><dd>{money(each.costPerHour)} per hour</dd></>}</dl>
          {each.wasteScore !== undefined && <div class="stack tight"><div class="row between small"><span class="muted">Waste score</span><span>{Math.round(each.wasteScore)} of 100</span></div><Bar label={`waste score ${Math.round(each.wasteScore)}`} parts={[{ share: each.wasteScore / 100, step: 6 }]} /></div>}</div>
          <div class="w6 stack">{each.reasons?.length ? <ul class="dots small">{each.reasons.map((reason) => <li>{reason}</li>)}</ul> : null}{each.command ? <Copy text={each.command} /> : <p class="muted small">No change is recommended.</p>}{each.feasible === false && <p class="small muted">The cluster has no place for it in this form now.</p>}</div></div></Card>)
        : <Card><Empty title={data.judged ? "No waste found" : "Not judged yet"}>{data.judged ? "Every GPU that you may see is used, or nothing is known about it yet." : "The optimizer judges pods after it has seen their use for some minutes."}</Empty></Card>}
    </div>}</Show>
    {demand.data && demand.data.demand.length > 0 && <Card title="Expected demand"><div class="stack">{demand.data.demand.map((each) => <div class="stack tight"><div class="row between"><strong>{each.model}</strong><span class="muted">{each.gpus === null ? "unknown" : plural(Math.round(each.gpus), "GPU")} in use now</span></div><div class="row small">{each.forecasts.map((one) => <Badge tone={one.gpus === undefined ? "" : "info"}>{`in ${one.hoursAhead} h: ${one.gpus === undefined ? "unknown" : `${Math.round(one.gpus)} (${Math.round(one.lower ?? 0)} to ${Math.round(one.upper ?? 0)})`}`}</Badge>)}</div>{each.forecasts[0]?.gpus === undefined && <span class="muted small">{each.forecasts[0]?.reasons?.[0]}</span>}</div>)}</div></Card>}
  </>;
}

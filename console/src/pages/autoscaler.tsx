import { useApi } from "../live";
import { Ago, Badge, Card, count, Empty, Head, money, plural, Show, Table } from "../ui";

interface Policy { name: string; spec: { provider: string; enabled?: boolean; dryRun?: boolean; minNodes?: number; maxNodes?: number; nodePools?: { name: string; gpuType?: string; maxSize?: number; minSize?: number }[] };
  status: { currentNodes?: number; desiredNodes?: number; spotNodes?: number; onDemandNodes?: number; pendingPods?: number; averageGPUUtilization?: number; lastScaleAction?: string; lastScaleReason?: string; estimatedMonthlyCost?: string; estimatedMonthlySavings?: string;
    stages?: { stage: string; nodes: number }[]; plan?: { pool: string; instanceType: string; zone: string; capacityType: string; count: number; pricePerHour?: string; reason?: string }[]; unmet?: { owner: string; reason: string; message?: string }[];
    blocked?: { pool: string; instanceType: string; zone: string; kind: string; until: string; message?: string }[]; kept?: { node: string; reason: string; message?: string }[]; actions?: { time: string; action: string; pool?: string; nodes?: number; reason?: string }[] } }

const TONE: Record<string, string> = { ScaleUp: "good", ScaleDown: "info", Drain: "warn", LaunchFailed: "bad", Replace: "warn" };

export function AutoscalerPage() {
  const found = useApi<{ visible: boolean; policies: Policy[] }>("/api/v1/autoscaler", ["policies"]);
  return <>
    <Head title="Autoscaler" sub="What would be bought now, what stays and why, and what was done" />
    <Show of={found}>{(data) => !data.visible ? <Card><Empty title="Not visible">You may not list AutoscalingPolicies. The ClusterRole kgwe-cluster-viewer has the right.</Empty></Card>
      : !data.policies.length ? <Card><Empty title="No AutoscalingPolicy">The fleet has a fixed size. Write a policy: <code>kubectl apply -f examples/autoscalingpolicy.yaml</code>.</Empty></Card>
      : <div class="stack">{data.policies.map((each) => <PolicyView policy={each} />)}</div>}</Show>
  </>;
}

function PolicyView({ policy }: { policy: Policy }) {
  const { spec, status } = policy;
  return <div class="grid">
    <Card title={policy.name} tools={<div class="row"><Badge>{spec.provider}</Badge>{spec.dryRun && <Badge tone="warn">dry run</Badge>}{spec.enabled === false && <Badge tone="warn">disabled</Badge>}</div>}>
      <div class="grid">
        <div class="w3 stat"><div class="label">Nodes</div><div class="value">{status.currentNodes ?? "?"}</div><div class="hint">{status.desiredNodes ?? "?"} desired, {spec.minNodes ?? 0} to {spec.maxNodes ?? 100} allowed</div></div>
        <div class="w3 stat"><div class="label">Spot / on-demand</div><div class="value">{status.spotNodes ?? "?"} / {status.onDemandNodes ?? "?"}</div></div>
        <div class="w3 stat"><div class="label">Pending pods</div><div class="value">{status.pendingPods ?? "?"}</div><div class="hint">{status.averageGPUUtilization === undefined ? "" : `${Math.round(status.averageGPUUtilization * 100)} % of GPUs in use`}</div></div>
        <div class="w3 stat"><div class="label">Per month</div><div class="value">{status.estimatedMonthlyCost ? money(status.estimatedMonthlyCost, 0) : "unknown"}</div><div class="hint">{status.estimatedMonthlySavings ? `${money(status.estimatedMonthlySavings, 0)} saved against on-demand` : ""}</div></div>
      </div>
      {status.stages?.length ? <div class="row"><span class="muted small">Stages</span>{status.stages.filter((each) => each.nodes).map((each) => <Badge>{`${each.stage} ${each.nodes}`}</Badge>)}</div> : null}
    </Card>
    <Card width="w6" title="Plan">{status.plan?.length ? <Table name="Plan" rows={status.plan} keyOf={(each) => `${each.pool}${each.instanceType}${each.zone}`} columns={[{ title: "Nodes", num: true, of: (each) => String(each.count) }, { title: "Type", of: (each) => <div class="stack tight"><span class="name">{each.instanceType}</span><span class="muted small">{each.pool}, {each.zone}, {each.capacityType}</span></div> }, { title: "Price", num: true, of: (each) => each.pricePerHour ? money(each.pricePerHour) : "unknown" }, { title: "For", of: (each) => each.reason ?? "" }]} /> : <Empty title="Nothing to buy">The last round planned no purchase.</Empty>}</Card>
    <Card width="w6" title="Waits without a purchase">{status.unmet?.length ? <ul class="plain">{status.unmet.map((each) => <li class="stack tight"><div class="row between"><span class="name">{each.owner}</span><Badge tone="warn">{each.reason}</Badge></div><span class="why">{each.message}</span></li>)}</ul> : <Empty title="None">Whatever waits is planned for, or needs no node.</Empty>}</Card>
    {status.kept?.length ? <Card width="w6" title="Nodes that stay"><ul class="plain">{status.kept.map((each) => <li><a class="name" href={`/fleet?node=${encodeURIComponent(each.node)}`}>{each.node}</a> <Badge>{each.reason}</Badge> <span class="muted small">{each.message}</span></li>)}</ul></Card> : null}
    {status.blocked?.length ? <Card width="w6" title="Refused by the provider"><ul class="plain">{status.blocked.map((each) => <li><span class="name">{each.instanceType} in {each.zone}</span> <Badge tone="bad">{each.kind}</Badge> <span class="muted small">again <Ago time={each.until} />. {each.message}</span></li>)}</ul></Card> : null}
    <Card title="History" tools={<span class="muted small">{plural(status.actions?.length ?? 0, "action")}</span>}>{status.actions?.length ? <Table name="History" rows={status.actions} keyOf={(each) => `${each.time}${each.action}${each.pool}`} columns={[{ title: "When", of: (each) => <Ago time={each.time} /> }, { title: "Action", of: (each) => <Badge tone={TONE[each.action] ?? ""}>{each.action}</Badge> }, { title: "Pool", of: (each) => each.pool ?? "" }, { title: "Nodes", num: true, of: (each) => count(each.nodes ?? 0) }, { title: "Why", of: (each) => each.reason ?? "" }]} /> : <Empty title="Nothing yet">The autoscaler has not bought or removed a node.</Empty>}</Card>
  </div>;
}

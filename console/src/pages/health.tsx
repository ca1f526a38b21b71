import type { Node } from "../api";
import { fleet, useApi, useFleet } from "../live";
import { FleetMap, isBad, Legend } from "../map";
import { go } from "../route";
import { Ago, Badge, Card, count, Empty, Head, Show, Table } from "../ui";

interface Health { visible: boolean; nodes: Node[]; incidents: { time: string; node: string; reason: string; gpu?: string; xid?: number; count?: number }[] }

export function HealthPage() {
  const found = useApi<Health>("/api/v1/health", ["fleet"]);
  useFleet();
  const gpus = [...fleet.nodes.values()].flatMap((node) => node.gpus);
  const bad = gpus.filter(isBad).length, degraded = gpus.filter((each) => each.health === "Degraded").length;
  return <>
    <Head title="Health" sub="Nodes and GPUs with problems, and what happened lately" />
    <Show of={found}>{(data) => !data.visible ? <Card><Empty title="Not visible">Health needs list of nodes and gpunodes. The ClusterRole kgwe-cluster-viewer has gpunodes.</Empty></Card> : <div class="grid">
      <section class="card stat w3"><div class="label">Healthy GPUs</div><div class="value">{count(gpus.length - bad - degraded)}</div></section>
      <section class="card stat w3"><div class="label">Degraded</div><div class="value">{count(degraded)}</div><div class="hint">used although something is wrong</div></section>
      <section class="card stat w3"><div class="label">Out of service</div><div class="value">{count(bad)}</div><div class="hint">unhealthy or not answering</div></section>
      <section class="card stat w3"><div class="label">Nodes not ready</div><div class="value">{count(data.nodes.filter((each) => each.ready === false).length)}</div></section>
      <Card title="Fleet by health"><div class="stack"><FleetMap paint="health" interactive={false} onSelect={(node) => go(`/fleet?colour=health&node=${encodeURIComponent(node)}`)} /><Legend paint="health" /></div></Card>
      <Card width="w7" title="Problems">{data.nodes.length ? <Table name="Problems" rows={data.nodes} keyOf={(row) => row.name} columns={[
        { title: "Node", of: (row) => <a class="name" href={`/fleet?node=${encodeURIComponent(row.name)}`}>{row.name}</a>, label: false },
        { title: "State", of: (row) => row.ready === false ? <Badge tone="bad">{row.fault || "Not ready"}</Badge> : row.cordoned ? <Badge tone="warn">Cordoned</Badge> : <Badge tone="good">Ready</Badge> },
        { title: "GPUs", of: (row) => <ul class="plain small">{row.gpus.map((gpu, number) => gpu.health ? <li><Badge>{gpu.health}</Badge> GPU {number}: {gpu.reason}</li> : null)}</ul>, label: false },
      ]} /> : <Empty title="No problems">All nodes are ready and all GPUs healthy.</Empty>}</Card>
      <Card width="w5" title="Incidents">{data.incidents.length ? <ul class="plain">{data.incidents.slice(0, 30).map((each) => <li class="row between"><span><a class="name" href={`/fleet?node=${encodeURIComponent(each.node)}`}>{each.node}</a> {each.reason}{each.xid ? ` (XID ${each.xid})` : ""}{(each.count ?? 1) > 1 ? ` ×${each.count}` : ""}</span><span class="muted small"><Ago time={each.time} /></span></li>)}</ul> : <Empty title="No incidents">None is recorded.</Empty>}</Card>
    </div>}</Show>
  </>;
}

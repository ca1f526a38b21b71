import { useState } from "preact/hooks";
import type { Node, WorkList } from "../api";
import { fleet, gpuUse, useApi, useFleet } from "../live";
import { FleetMap, Legend, type Paint } from "../map";
import { setQuery, type Place } from "../route";
import { Ago, Badge, Card, count, Empty, Head, money, plural, Problem, Search, Select, Show, Table } from "../ui";

interface Details {
  node: Node; driver: string; labels: Record<string, string>;
  gpus: { index: number; uuid: string; model: string; memoryMib: number; health: string; message?: string; action?: string; lastXid?: number; links?: string; numaNode?: number; reliability?: number }[];
  incidents: { time: string; node: string; reason: string; xid?: number; count?: number }[];
}
const PAINTS: [Paint, string][] = [["namespace", "Namespace"], ["use", "Use"], ["health", "Health"], ["model", "GPU model"], ["cost", "Cost"]];
const ROWS = 50;

export function FleetPage({ place }: { place: Place }) {
  const known = useFleet();
  const paint = (place.query.get("colour") as Paint | null) ?? "namespace", search = place.query.get("search") ?? "", selected = place.query.get("node") ?? "";
  const nodes = [...known.nodes.values()];
  const gpus = nodes.reduce((sum, node) => sum + node.gpus.length, 0);
  return <>
    <Head title="Fleet map" sub={known.loaded ? `${plural(nodes.length, "node")}, ${plural(gpus, "GPU")}, by ${[...known.levels].reverse().join(" → ") || "network position"}` : "Loading …"}>
      <Search label="Find a node, pod, model or leaf" value={search} change={(text) => setQuery({ search: text })} />
      <Select label="Colour" value={paint} options={PAINTS} change={(text) => setQuery({ colour: text })} />
    </Head>
    {known.error && !known.loaded && <Problem error={known.error} />}
    {known.loaded && !nodes.length && <Card><Empty title="No GPU nodes to show">Either the cluster has none, or you may not list nodes. The ClusterRole kgwe-cluster-viewer and list of nodes show the fleet.</Empty></Card>}
    {nodes.length > 0 && <>
      {!known.complete && <p class="notice">You do not see all pods: a GPU without colour is free, or held by a pod that you may not list.</p>}
      <div class="grid">
        <div class={selected ? "w8 stack" : "w12 stack"}><FleetMap tall paint={paint} search={search} selected={selected} onSelect={(node) => setQuery({ node }, false)} /><Legend paint={paint} /></div>
        {selected && <NodePanel name={selected} />}
      </div>
      <Nodes nodes={nodes} search={search} />
    </>}
  </>;
}

function NodePanel({ name }: { name: string }) {
  const found = useApi<Details>(`/api/v1/fleet/${encodeURIComponent(name)}`, ["fleet"]);
  const work = useApi<WorkList>(`/api/v1/workloads?node=${encodeURIComponent(name)}&limit=20`, ["work"]);
  const node = fleet.nodes.get(name);
  return <Card width="w4" title={name} tools={<button class="button small" onClick={() => setQuery({ node: "" })}>Close</button>}>
    <Show of={found}>{(data) => <div class="stack">
      <div class="row">{data.node.ready === false ? <Badge tone="bad">Not ready</Badge> : <Badge tone="good">Ready</Badge>}{data.node.cordoned && <Badge tone="warn">Cordoned</Badge>}{data.node.capacityType && <Badge>{data.node.capacityType}</Badge>}</div>
      <dl class="facts"><dt>GPUs</dt><dd>{data.node.gpus.length} × {data.node.model}</dd><dt>Network</dt><dd>{[...(data.node.path ?? [])].reverse().filter(Boolean).join(" → ")}</dd>
        <dt>Type</dt><dd>{data.node.instanceType || "unknown"}</dd><dt>Price</dt><dd>{data.node.pricePerHour === undefined ? "unknown" : `${money(data.node.pricePerHour)} per hour`}</dd>{data.driver && <><dt>Driver</dt><dd>{data.driver}</dd></>}{data.node.fault && <><dt>Fault</dt><dd>{data.node.fault}</dd></>}</dl>
      <Islands node={node ?? data.node} />
      <h3>GPUs</h3>
      <ul class="plain small">{(node ?? data.node).gpus.map((gpu, number) => { const more = data.gpus.find((each) => each.index === number); return <li><div class="row between"><span><strong>{number}</strong> {gpu.slices?.length ? `${gpu.slices.length} slices` : gpu.pods?.join(", ") || (gpu.reserved ? `reserved for ${gpu.reserved}` : fleet.complete ? "free" : "no pod of yours")}</span>{gpu.health && <Badge>{gpu.health}</Badge>}</div>
        {gpu.slices?.map((slice) => <div class="muted">{slice.profile} at {slice.start}: {slice.pod ?? "free"}</div>)}{more?.message && <div class="muted">{more.message}{more.action ? ` Do: ${more.action}.` : ""}</div>}</li>; })}</ul>
      <h3>Work</h3>
      <Show of={work}>{(list) => list.items.length ? <ul class="plain small">{list.items.map((each) => <li class="row between"><a href={`/workloads/${each.namespace}/${each.name}${each.kind === "Pod" ? "?kind=pod" : ""}`}>{each.namespace}/{each.name}</a><Badge>{each.phase}</Badge></li>)}</ul> : <p class="muted small">None that you may list.</p>}</Show>
      {data.incidents.length > 0 && <><h3>Incidents</h3><ul class="plain small">{data.incidents.slice(0, 5).map((each) => <li><Ago time={each.time} />: {each.reason}{each.xid ? ` (XID ${each.xid})` : ""}</li>)}</ul></>}
    </div>}</Show>
  </Card>;
}

function Islands({ node }: { node: Node }) {
  const islands = new Map<number, number[]>();
  node.gpus.forEach((gpu, number) => { if (gpu.island) islands.set(gpu.island, [...(islands.get(gpu.island) ?? []), number]); });
  const text = [...islands.values()].filter((each) => each.length > 1).map((each) => each.length === node.gpus.length ? "all GPUs" : each.join(", "));
  return <p class="small muted">{text.length ? `NVLink: ${text.join(" · ")}${node.nvlink ? `; NVLink domain ${node.nvlink}` : ""}` : "No NVLink between its GPUs is known."}</p>;
}

function Nodes({ nodes, search }: { nodes: Node[]; search: string }) {
  const [shown, setShown] = useState(ROWS);
  const wanted = search.toLowerCase();
  const rows = nodes.filter((node) => !wanted || `${node.name} ${node.model} ${node.pool} ${node.path?.join(" ")} ${node.gpus.map((each) => each.pods?.join(" ")).join(" ")}`.toLowerCase().includes(wanted)).sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  return <Card title="Nodes" tools={<span class="muted small">{plural(rows.length, "node")}</span>}>
    {rows.length ? <Table name="Nodes" rows={rows.slice(0, shown)} keyOf={(node) => node.name} columns={[
      { title: "Node", of: (node) => <a class="name" href={`/fleet?node=${encodeURIComponent(node.name)}`}>{node.name}</a>, label: false },
      { title: "State", of: (node) => node.ready === false ? <Badge tone="bad">Not ready</Badge> : node.cordoned ? <Badge tone="warn">Cordoned</Badge> : <Badge tone="good">Ready</Badge> },
      { title: "Model", of: (node) => node.model ?? "" },
      { title: "Leaf", of: (node) => node.path?.[0] ?? "" },
      { title: "Held", num: true, of: (node) => `${count(node.gpus.reduce((sum, gpu) => sum + gpuUse(gpu), 0))} of ${node.gpus.length}` },
      { title: "Unhealthy", num: true, of: (node) => { const bad = node.gpus.filter((gpu) => gpu.health).length; return bad ? String(bad) : ""; } },
      { title: "Per hour", num: true, of: (node) => node.pricePerHour === undefined ? "unknown" : money(node.pricePerHour) },
    ]} /> : <Empty title="No node matches">Try another text.</Empty>}
    {rows.length > shown && <div class="row"><button class="button small" onClick={() => setShown(shown + 200)}>Show more</button></div>}
  </Card>;
}

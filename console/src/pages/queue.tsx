import { useApi } from "../live";
import { Age, ago, Badge, Bar, Card, count, Empty, Head, plural, Show, Table } from "../ui";
import { linkOf, OBSTACLES } from "./workloads";

interface Row { namespace: string; name: string; kind: string; group?: string; gpus: string; message: string; position?: number; priority?: number; created?: string; reason?: string; hopeless?: boolean; estimatedStart?: [string, string] }
interface Queue { items: Row[]; ordered: boolean; shares: Record<string, number> }

export function QueuePage() {
  const found = useApi<Queue>("/api/v1/queue", ["work"]);
  return <>
    <Head title="Queue" sub="What waits for GPUs: by priority, then the namespace with the smallest share, then age" />
    <Show of={found}>{(data) => {
      const shares = Object.entries(data.shares).sort(([, a], [, b]) => b - a), most = shares[0]?.[1] ?? 1;
      return <div class="grid">
        <Card width={shares.length ? "w8" : "w12"} title={plural(data.items.length, "workload waits", "workloads wait")}>
          {!data.ordered && <p class="notice small">Positions need rights on the whole cluster: they tell what others wait for.</p>}
          {data.items.length ? <Table name="Queue" rows={data.items} keyOf={(row) => `${row.kind}/${row.group}/${row.namespace}/${row.name}`} columns={[
            { title: "Place", num: true, of: (row) => row.position ? String(row.position) : "–" },
            { title: "Workload", of: (row) => <div class="stack tight"><a class="name" href={linkOf(row)}>{row.namespace}/{row.name}</a><span class="muted small">priority {row.priority ?? 0} · waiting for <Age time={row.created} /></span></div>, label: false },
            { title: "GPUs", num: true, of: (row) => row.gpus },
            { title: "Why", of: (row) => <div class="stack tight"><span>{row.hopeless ? <Badge tone="bad">{row.reason ?? "Hopeless"}</Badge> : row.reason ? <Badge tone="warn">{row.reason}</Badge> : null}</span><span class="why">{row.message}</span></div>, label: false },
            { title: "Starts", of: (row) => row.hopeless ? `never: ${OBSTACLES[row.reason ?? ""] ?? "the cluster cannot run it as it is"}` : row.estimatedStart ? <span title={`9 of 10 by ${row.estimatedStart[1]}`}>{ago(row.estimatedStart[0])}</span> : "unknown" },
          ]} /> : <Empty title="Nothing waits">Every workload that you may list has its GPUs.</Empty>}
        </Card>
        {shares.length > 0 && <Card width="w4" title="GPUs held by namespace"><div class="stack">{shares.map(([name, gpus]) => <div class="stack tight"><div class="row between"><span>{name}</span><span class="muted">{count(gpus)}</span></div><Bar label={`${name} holds ${count(gpus)} GPUs`} parts={[{ share: gpus / most, step: 1 }]} /></div>)}</div></Card>}
      </div>;
    }}</Show>
  </>;
}

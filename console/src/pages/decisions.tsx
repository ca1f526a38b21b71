import { useApi } from "../live";
import { setQuery, type Place } from "../route";
import { Ago, Badge, Card, count, Empty, Head, Pager, plural, Search, Show, Table } from "../ui";

interface Row { time: string; by: string; namespace: string; name: string; pods?: number; nodes?: string[]; gpus?: number; score?: number; gbPerS?: number; domain?: string; reason?: string; message?: string }

export function DecisionsPage({ place }: { place: Place }) {
  const query = (name: string) => place.query.get(name) ?? "";
  const wanted = new URLSearchParams({ limit: "50", ...(query("name") ? { name: query("name") } : {}), ...(query("continue") ? { continue: query("continue") } : {}) });
  const found = useApi<{ items: Row[]; configured: boolean; continue?: string }>(`/api/v1/decisions?${wanted}`, [], 5000);
  return <>
    <Head title="Decision log" sub="Every search for a place by the scheduler, the newest first. Budgets are checked after a place is found, so such a workload may still wait. kgwe replay makes the decisions again."><Search label="Name of a workload" value={query("name")} change={(name) => setQuery({ name, continue: "" })} /></Head>
    <Card><Show of={found}>{(data) => !data.configured ? <Empty title="No decision records">The scheduler writes them where its setting recordDirectory says; the console reads the same directory by its own setting recordDirectory.</Empty>
      : data.items.length ? <div class="stack"><Table name="Decisions" rows={data.items} keyOf={(row) => `${row.time}${row.namespace}${row.name}${row.by}${row.reason ?? ""}`} columns={[
        { title: "When", of: (row) => <Ago time={row.time} /> },
        { title: "Workload", of: (row) => <div class="stack tight"><a class="name" href={`/workloads/${encodeURIComponent(row.namespace)}/${encodeURIComponent(row.name)}`}>{row.namespace}/{row.name}</a><span class="muted small">{row.by === "plan" ? "planned" : "filtered for kube-scheduler"}, {plural(row.pods ?? 1, "pod")}</span></div>, label: false },
        { title: "Answer", of: (row) => row.reason ? <Badge tone="warn">{row.reason}</Badge> : <Badge tone="good">Place found</Badge> },
        { title: "Where, or why not", of: (row) => row.reason ? <span class="why">{row.message}</span> : <span>{row.nodes?.slice(0, 4).join(", ")}{(row.nodes?.length ?? 0) > 4 ? ` and ${row.nodes!.length - 4} more` : ""} <span class="muted small">{row.domain}</span></span>, label: false },
        { title: "GPUs", num: true, of: (row) => row.gpus ? String(row.gpus) : "" },
        { title: "Score", num: true, of: (row) => row.score === undefined ? "" : count(Math.round(row.score)) },
      ]} /><Pager next={data.continue} first={!query("continue")} more={(mark) => setQuery({ continue: mark }, false)} /></div> : <Empty title="No decisions">None about workloads that you may list.</Empty>}</Show></Card>
  </>;
}

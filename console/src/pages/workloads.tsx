import type { Explanation, Placed, Work, WorkList } from "../api";
import { fleet, useApi, useFleet } from "../live";
import { FleetMap } from "../map";
import { go, setQuery, type Place } from "../route";
import { Age, Ago, ago, Badge, Card, count, Copy, Empty, Head, money, Pager, plural, Search, Select, Show, Table } from "../ui";

const PHASES = ["Pending", "Scheduled", "Running", "Failed", "Suspended", "Succeeded"];
export const linkOf = (work: { kind: string; namespace: string; name: string; group?: string }) => `/workloads/${encodeURIComponent(work.namespace)}/${encodeURIComponent(work.name)}${work.kind === "Pod" ? "?kind=pod" : work.group && work.group !== "kgwe.nvidia.io" ? `?group=${work.group}` : ""}`;

export function WorkloadsPage({ place }: { place: Place }) {
  const query = (name: string) => place.query.get(name) ?? "";
  const wanted = new URLSearchParams({ limit: "50" });
  for (const name of ["phase", "namespace", "search", "sort", "continue"]) if (query(name)) wanted.set(name, query(name));
  const found = useApi<WorkList>(`/api/v1/workloads?${wanted}`, ["work"]);
  const phase = query("phase");
  return <>
    <Head title="Workloads" sub="GPUWorkloads of both API groups, and GPU pods that no workload owns">
      <Search label="Find by name, node or message" value={query("search")} change={(search) => setQuery({ search, continue: "" })} />
      <Select label="Namespace" value={query("namespace")} options={[["", "all"], ...(found.data?.namespaces ?? (query("namespace") ? [query("namespace")] : [])).map((each) => [each, each] as [string, string])]} change={(namespace) => setQuery({ namespace, continue: "" })} />
    </Head>
    <div class="row" role="group" aria-label="Phases"><button class="chip" aria-pressed={!phase} onClick={() => setQuery({ phase: "", continue: "" })}>All</button>{PHASES.map((each) => <button class="chip" aria-pressed={phase === each} onClick={() => setQuery({ phase: phase === each ? "" : each, continue: "" })}>{each} <span class="muted">{found.data?.phases[each] ?? 0}</span></button>)}</div>
    <Card><Show of={found}>{(data) => data.items.length ? <div class="stack">
      <Table name="Workloads" rows={data.items} keyOf={(row) => `${row.kind}/${row.group}/${row.namespace}/${row.name}`} columns={[
        { title: "Workload", of: (row) => <div class="stack tight"><a class="name" href={linkOf(row)}>{row.name}</a><span class="muted small">{row.namespace} · {row.kind === "Pod" ? "pod" : row.type || "workload"}</span></div>, label: false },
        { title: "Phase", of: (row) => <Badge>{row.phase}</Badge> },
        { title: "GPUs", num: true, of: (row) => row.gpus ?? "" },
        { title: "Where, or why not", of: (row) => <Where row={row} />, label: false },
        { title: "Starts", of: (row) => row.estimatedStart ? <span title={`9 of 10 by ${row.estimatedStart[1]}`}>{ago(row.estimatedStart[0])}</span> : "" },
        { title: "Node price share / h", num: true, of: (row) => row.ratePerHour === undefined ? "" : money(row.ratePerHour) },
        { title: "Age", of: (row) => <Age time={row.created} /> },
      ]} />
      <div class="row between"><span class="muted small">{plural(data.total, "row")}</span><Pager next={data.continue} first={!query("continue")} more={(mark) => setQuery({ continue: mark }, false)} /></div></div>
      : <Empty title="No workloads">{phase || query("search") || query("namespace") ? "None matches the filter." : <>Submit one: <code>kubectl apply -f examples/training.yaml</code>. Or ask <a href="/what-if">what-if</a> first.</>}</Empty>}</Show></Card>
  </>;
}

function Where({ row }: { row: Work }) {
  if (row.message && (row.phase === "Pending" || row.phase === "Failed" || row.phase === "Scheduling")) return <div class="stack tight">{row.reason && <span><Badge tone={row.phase === "Failed" ? "bad" : "warn"}>{row.reason}</Badge></span>}<span class="why">{row.message}</span></div>;
  return <div class="stack tight"><span>{row.nodes}</span><span class="muted small">{row.domain}{row.score === undefined ? "" : ` · score ${row.score}`}</span></div>;
}

export function WorkloadPage({ namespace, name, place }: { namespace: string; name: string; place: Place }) {
  const kind = place.query.get("kind") ?? "", group = place.query.get("group") ?? "";
  const more = new URLSearchParams({ ...(kind ? { kind } : {}), ...(group ? { group } : {}) }).toString();
  const told = useApi<Explanation>(`/api/v1/explain/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}${more ? `?${more}` : ""}`, ["work"]);
  const list = useApi<WorkList>(`/api/v1/workloads?namespace=${encodeURIComponent(namespace)}&search=${encodeURIComponent(name)}&limit=50`, ["work"]);
  const row = list.data?.items.find((each) => each.name === name);
  useFleet();
  return <>
    <Head title={name} sub={<><a href="/workloads">Workloads</a> / <a href={`/workloads?namespace=${encodeURIComponent(namespace)}`}>{namespace}</a></>}>{told.data && <Badge>{told.data.state}</Badge>}</Head>
    <Show of={told}>{(data) => <div class="grid">
      <Card width="w7" title={data.waiting ? "Why it waits" : "Where it is"}>
        <div class="stack"><p class="name">{sentence(data.summary)}</p>
          {data.waiting && <Why waiting={data.waiting} />}
          {data.estimatedStart && <p class="notice good">Likely to start {ago(data.estimatedStart[0])} (half of such work), and in 9 of 10 cases {ago(data.estimatedStart[1])}.</p>}
          {data.turn && <p>Place {data.turn.place} of {data.turn.of} in the queue{data.turn.ahead?.length ? `, behind ${data.turn.ahead.join(", ")}` : ""}.</p>}
          {data.problems?.map((each) => <p class="notice error">{each}</p>)}
          {data.cuts?.map((each) => <p class="notice">{each}</p>)}
          {row?.advice && <p class="notice warning">{row.advice} <a href="/waste">See the waste page.</a></p>}
        </div>
      </Card>
      <Card width="w5" title="Facts"><dl class="facts">
        {data.asked?.map((each, number) => <><dt>{number ? "" : "Asks for"}</dt><dd>{each}</dd></>)}
        {row?.created && <><dt>Created</dt><dd><Ago time={row.created} /></dd></>}{row?.started && <><dt>Started</dt><dd><Ago time={row.started} /></dd></>}
        {row?.ratePerHour !== undefined && <><dt>Costs</dt><dd>{money(row.ratePerHour)} per hour <span class="muted small">its share of the prices of its nodes, by GPUs; the ledger and budgets count CPUs and memory apart</span></dd></>}
        {row?.gpusHeld ? <><dt>Holds</dt><dd>{plural(row.gpusHeld, "GPU")}</dd></> : null}
        {data.gang && <><dt>Gang</dt><dd>{data.gang.name} ({data.gang.dialect}), {plural(data.gang.members, "member")}{data.gang.missing ? `, ${data.gang.missing} missing` : ""}</dd></>}
      </dl><div class="stack"><span /><Copy text={`kgwe explain ${kind === "pod" ? "pod/" : ""}${name} -n ${namespace}`} /></div></Card>
      <PlanCard title={data.placed ? "Where it runs" : "Where it would go"} placed={data.placed ?? data.wouldGo} names={row?.nodeNames} />
      {data.said && data.said.length > 0 && <Card title="Conditions"><Table name="Conditions" rows={data.said} keyOf={(each) => each.type} columns={[{ title: "Type", of: (each) => each.type }, { title: "Status", of: (each) => each.status }, { title: "Reason", of: (each) => each.reason ?? "" }, { title: "Message", of: (each) => each.message ?? "" }, { title: "Since", of: (each) => <Ago time={each.since} /> }]} /></Card>}
      {data.warnings && data.warnings.length > 0 && <div class="w12 stack">{data.warnings.map((each) => <p class="notice small">Not shown: {each}</p>)}</div>}
    </div>}</Show>
  </>;
}

export const sentence = (text: string) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");

/** What blocks a workload that waiting does not help, where it is not the cluster. */
export const OBSTACLES: Record<string, string> = { BudgetExceeded: "its budget is too small for it", CostLimitExceeded: "it costs more than its own limit allows" };

export function Why({ waiting }: { waiting: NonNullable<Explanation["waiting"]> }) {
  return <div class="stack">
    <p>{waiting.message}</p>
    {waiting.hopeless && <p class="notice error">It will not start by waiting: {OBSTACLES[waiting.reason] ?? "the cluster cannot run it as it is"}.</p>}
    {(waiting.fix || waiting.changes?.length) && <div class="notice good"><strong>What would help</strong><ul class="dots">{waiting.fix && <li>{sentence(waiting.fix)}</li>}{waiting.changes?.map((each) => <li>{each.text}{each.stops?.length ? ` (stops ${each.stops.join(", ")})` : ""}</li>)}</ul></div>}
    {waiting.best && waiting.best.level !== "cluster" && <p>Nearest place: {waiting.best.level} {waiting.best.domain} has room for {waiting.best.room} of {waiting.best.needed} pods{waiting.freeBy ? `; enough is expected to be free ${ago(waiting.freeBy)}` : ""}.</p>}
    {waiting.nodes?.length ? <div><h3>Nodes</h3><ul class="dots">{waiting.nodes.map((each) => <li>{plural(each.count, "node")} {each.text || each.verdict}{each.examples?.length ? <span class="muted"> such as {each.examples.join(", ")}</span> : ""}</li>)}</ul></div> : null}
    {waiting.holders?.length ? <div><h3>Holders of the nearest place</h3><ul class="dots">{waiting.holders.map((each) => <li>{each.name}: {plural(each.gpus, "GPU")}{each.until ? `, expected to end ${ago(each.until)}` : ""}</li>)}</ul></div> : null}
  </div>;
}

export function PlanCard({ title, placed, names }: { title: string; placed: Placed | undefined; names?: string[] | undefined }) {
  const marked = new Set([...(placed?.seats.map((each) => each.node) ?? []), ...(names ?? [])]);
  if (!marked.size) return <></>;
  return <Card title={title} tools={<span class="muted small">{plural(marked.size, "node")}</span>}><div class="stack">
    {fleet.nodes.size > 0 && <FleetMap paint="use" marked={marked} interactive={false} onSelect={(node) => go(`/fleet?node=${encodeURIComponent(node)}`)} />}
    <dl class="facts">{placed?.domain && <><dt>Domain</dt><dd>{placed.domain}</dd></>}{placed?.score !== undefined && <><dt>Score</dt><dd>{count(placed.score)} of 100{placed.parts ? ` (${Object.entries(placed.parts).map(([part, points]) => `${part} ${count(points)}`).join(", ")})` : ""}</dd></>}{placed?.gbPerS !== undefined && <><dt>Bandwidth</dt><dd>{count(Math.round(placed.gbPerS))} GB/s between its GPUs</dd></>}<dt>Nodes</dt><dd>{[...marked].slice(0, 24).map((node) => <><a href={`/fleet?node=${encodeURIComponent(node)}`}>{node}</a> </>)}{marked.size > 24 ? `and ${marked.size - 24} more` : ""}</dd></dl>
    {placed?.why?.length ? <ul class="dots small">{placed.why.map((each) => <li>{each}</li>)}</ul> : null}
  </div></Card>;
}

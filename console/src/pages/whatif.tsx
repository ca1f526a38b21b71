import { useState } from "preact/hooks";
import { ApiError, call, type WhatIf } from "../api";
import { fleet, useFleet } from "../live";
import { Badge, Card, Empty, Head, money, plural, Problem } from "../ui";
import { PlanCard, sentence, Why } from "./workloads";

const SAMPLE = `apiVersion: kgwe.nvidia.io/v1
kind: GPUWorkload
metadata:
  name: my-training
spec:
  workloadType: Training
  gpuRequirements:
    count: 16
    topology:
      preference: NVLinkOptimal
  gpusPerPod: 8
`;

export function WhatIfPage() {
  const [text, setText] = useState(() => sessionStorage.getItem("kgwe-what-if") ?? SAMPLE);
  const [namespace, setNamespace] = useState("default");
  const [answer, setAnswer] = useState<WhatIf | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [busy, setBusy] = useState(false);
  const named = readNamespace(text);
  useFleet();
  const ask = async (event: Event) => {
    event.preventDefault();
    setBusy(true); setError(null);
    sessionStorage.setItem("kgwe-what-if", text);
    try { setAnswer(await call<WhatIf>("/api/v1/what-if", { method: "POST", body: { manifest: text, namespace } })); }
    catch (caught) { setAnswer(null); setError(caught instanceof ApiError ? caught : new ApiError(0, "Error", String(caught))); }
    setBusy(false);
  };
  return <>
    <Head title="What-if" sub="Paste a manifest: where it would go and what it would cost, before you submit it. Nothing is created." />
    <div class="grid">
      <form class="card w5 stack" onSubmit={ask}>
        <label class="stack tight"><span class="muted small">Manifest: GPUWorkload, Job, Deployment, pod or gang (YAML)</span><textarea class="field" rows={18} spellcheck={false} value={text} onInput={(event) => setText(event.currentTarget.value)} onKeyDown={(event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void ask(event); }} /></label>
        <div class="row between"><label class="row small"><span class="muted">Namespace</span><input class="field" value={named || namespace} disabled={!!named} title={named ? "The manifest names it." : ""} onInput={(event) => setNamespace(event.currentTarget.value)} /></label><button class="button primary" type="submit" disabled={busy || !text.trim()}>{busy ? "Planning …" : "Plan it"}</button></div>
      </form>
      <div class="w7 stack">
        {error && <Problem error={error} />}
        {!answer && !error && <Card><Empty title="No plan yet">“Plan it”, or Ctrl+Enter, plans on a copy of the cluster as it is now.</Empty></Card>}
        {answer?.results.map((each) => <>
          <Card title={each.name || "Workload"} tools={each.wouldGo ? <Badge tone="good">Would start now</Badge> : <Badge tone="warn">Would wait</Badge>}><div class="stack"><p class="name">{sentence(each.summary)}</p>
            {each.wouldGo && <p>{costOf(each.wouldGo.seats)}</p>}
            {each.waiting && <Why waiting={each.waiting} />}{each.problems?.map((problem) => <p class="notice error">{problem}</p>)}</div></Card>
          <PlanCard title="On the map" placed={each.wouldGo} /></>)}
        {answer && <p class="muted small">Planned on {plural(answer.gpus.nodes, "node")} with {plural(answer.gpus.free, "free whole GPU")}.{answer.ignored?.length ? ` Without effect on placement: ${answer.ignored.join(", ")}.` : ""}</p>}
      </div>
    </div>
  </>;
}

/** The namespace that the only document of a manifest names; empty: none, or there are several documents. */
function readNamespace(text: string): string {
  if (/\n---/.test(text.trim())) return "";
  return /^metadata:[^\n]*\n(?:[ #][^\n]*\n)*?  namespace: *["']?([a-z0-9-]+)/m.exec(text)?.[1] ?? "";
}

/** The prices of its nodes, by the GPUs that it would hold. */
function costOf(seats: { node: string; cards?: number[] }[]): string {
  let rate = 0;
  for (const seat of seats) {
    const node = fleet.nodes.get(seat.node);
    if (node?.pricePerHour === undefined || !seat.cards?.length) return "Its cost is not known: a node has no price, or it asks for parts of GPUs.";
    rate += (node.pricePerHour * seat.cards.length) / node.gpus.length;
  }
  return `It would cost ${money(rate)} per hour: the prices of its nodes, by the GPUs that it holds. The ledger and budgets count CPUs and memory apart, so their figure differs.`;
}

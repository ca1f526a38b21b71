/** The frame of all pages: navigation, theme, the session, and the page of the address. */
import { useEffect, useState } from "preact/hooks";
import { ApiError, call, setCsrf, type Overview, type Session } from "./api";
import { connect, disconnect, fleet, useApi, useFleet } from "./live";
import { go, usePlace, type Place } from "./route";
import { AutoscalerPage } from "./pages/autoscaler";
import { CostPage } from "./pages/cost";
import { DecisionsPage } from "./pages/decisions";
import { FleetPage } from "./pages/fleet";
import { HealthPage } from "./pages/health";
import { OverviewPage } from "./pages/overview";
import { QueuePage } from "./pages/queue";
import { SignInPage } from "./pages/signin";
import { WastePage } from "./pages/waste";
import { WhatIfPage } from "./pages/whatif";
import { WorkloadPage, WorkloadsPage } from "./pages/workloads";
import { Empty, Head } from "./ui";

const PAGES: { path: string; title: string; icon: string; group?: string }[] = [
  { path: "/", title: "Overview", icon: "M3 3h7v9H3zM14 3h7v5h-7zM14 12h7v9h-7zM3 16h7v5H3z" },
  { path: "/fleet", title: "Fleet map", icon: "M4 4h6v6H4zM14 4h6v6h-6zM4 14h6v6H4zM14 14h6v6h-6z" },
  { path: "/health", title: "Health", icon: "M3 12h4l3-8 4 16 3-8h4" },
  { path: "/workloads", title: "Workloads", icon: "M4 6h16M4 12h16M4 18h10", group: "Work" },
  { path: "/queue", title: "Queue", icon: "M12 7v5l3 3M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18" },
  { path: "/what-if", title: "What-if", icon: "M9 9a3 3 0 1 1 4 3c-1 .5-1 1-1 2M12 18v.5" },
  { path: "/decisions", title: "Decision log", icon: "M6 3h9l4 4v14H6zM9 12h7M9 16h5" },
  { path: "/waste", title: "Waste", icon: "M5 7h14l-1.5 13h-11zM9 7V4h6v3", group: "Money" },
  { path: "/cost", title: "Cost and budgets", icon: "M12 3v18M16 7c-1-1-2-1.500-4-1.500-5 0-5 6 0 6s5 6.500 0 6.500c-2 0-3-.5-4.500-1.500" },
  { path: "/autoscaler", title: "Autoscaler", icon: "M4 20V10M10 20V4M16 20v-8M22 20V7" },
];

export function App() {
  const place = usePlace();
  const [session, setSession] = useState<Session | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    const signedOut = (event: Event) => { setSession(null); disconnect(); setProblem((event as CustomEvent<string>).detail || "Sign in to go on."); };
    window.addEventListener("kgwe-signed-out", signedOut);
    void start();
    return () => window.removeEventListener("kgwe-signed-out", signedOut);
  }, []);
  const accept = (found: Session) => { setCsrf(found.csrf); setSession(found); setProblem(null); connect(); };
  const start = async () => {
    const code = location.pathname === "/sign-in" ? location.hash.slice(1) : "";
    try {
      if (code) {
        window.history.replaceState(null, "", "/");
        accept(await call<Session>("/api/v1/session", { method: "POST", body: { code } }));
        go("/", true);
        window.dispatchEvent(new Event("kgwe-place"));
      } else accept(await call<Session>("/api/v1/session"));
    } catch (error) {
      setProblem(error instanceof ApiError ? error.message : String(error));
      if (error instanceof ApiError && error.status === 0) setTimeout(start, 3000);
    }
  };
  if (!session) return problem === null ? <div class="sign-in row"><div class="spin" /> Loading …</div> : <SignInPage problem={problem} accept={accept} />;
  return <Shell place={place} session={session} leave={() => { void call("/api/v1/session", { method: "DELETE" }).catch(() => undefined).then(() => { disconnect(); setSession(null); setProblem("You are signed out."); }); }} />;
}

function Shell({ place, session, leave }: { place: Place; session: Session; leave: () => void }) {
  const [open, setOpen] = useState(false);
  const [theme, setTheme] = useState(readTheme);
  useEffect(() => { document.documentElement.dataset.theme = theme; }, [theme]);
  useEffect(() => {
    const system = matchMedia("(prefers-color-scheme: dark)"), follow = () => setTheme(readTheme());
    system.addEventListener("change", follow);
    return () => system.removeEventListener("change", follow);
  }, []);
  const choose = (wanted: string) => { setTheme(wanted); try { localStorage.setItem("kgwe-theme", wanted); } catch { /* private window */ } };
  useEffect(() => setOpen(false), [place.path]);
  useEffect(() => {
    const keys = (event: KeyboardEvent) => {
      if (event.key === "Escape") setOpen(false);
      if (event.key === "/" && !/INPUT|TEXTAREA|SELECT/.test((event.target as Element).tagName)) { const field = document.querySelector<HTMLInputElement>("input[type=search]"); if (field) { event.preventDefault(); field.focus(); } }
    };
    document.addEventListener("keydown", keys);
    return () => document.removeEventListener("keydown", keys);
  }, []);
  useFleet();
  const glance = useApi<Overview>("/api/v1/overview", ["work"]);
  const waiting = (glance.data?.phases.Pending ?? 0) + (glance.data?.phases.Scheduling ?? 0);
  const current = (path: string) => place.path === path || (path !== "/" && place.path.startsWith(`${path}/`));
  const live = <span class="live"><i class={`dot ${fleet.connected ? "" : "off"}`} />{fleet.connected ? "Live" : "Reconnecting …"}</span>;
  return <>
    <a class="skip" href="#main">Skip to the page</a>
    <div class="topbar"><button class="button small menu-button" aria-expanded={open} aria-controls="side" onClick={() => setOpen(!open)}>Menu</button><a class="brand" href="/"><img src="/icon.svg" alt="" />KGWE</a>{live}</div>
    <div class="shell">
      <aside class={`side ${open ? "open" : ""}`} id="side">
        <a class="brand" href="/"><img src="/icon.svg" alt="" />KGWE</a>
        <nav class="nav" aria-label="Pages">{PAGES.map((page) => <>
          {page.group && <div class="group">{page.group}</div>}
          <a href={page.path} aria-current={current(page.path) ? "page" : undefined}>
            <svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.800" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d={page.icon} /></svg>
            {page.title}{page.path === "/queue" && waiting > 0 && <span class="count" title={`${waiting} waiting`}>{waiting}</span>}
          </a></>)}</nav>
        <div class="foot">
          {live}
          <span title={session.groups.join(", ")}>{session.user}</span>
          <div class="row"><button class="button small" onClick={() => choose(theme === "dark" ? "light" : "dark")}>{theme === "dark" ? "Light" : "Dark"}</button><button class="button small" onClick={leave}>Sign out</button></div>
        </div>
      </aside>
      <main class="main" id="main" tabIndex={-1}>
        {!fleet.connected && fleet.loaded && <div class="banner" role="status">The stream of changes was cut. What you see may be old; the page reconnects by itself.</div>}
        <Page place={place} />
      </main>
    </div>
  </>;
}

function Page({ place }: { place: Place }) {
  const [, name, ...rest] = place.path.split("/").map(decodeURIComponent);
  if (!name) return <OverviewPage />;
  if (name === "fleet") return <FleetPage place={place} />;
  if (name === "health") return <HealthPage />;
  if (name === "workloads") return rest.length === 2 ? <WorkloadPage namespace={rest[0]!} name={rest[1]!} place={place} /> : <WorkloadsPage place={place} />;
  if (name === "queue") return <QueuePage />;
  if (name === "what-if") return <WhatIfPage />;
  if (name === "decisions") return <DecisionsPage place={place} />;
  if (name === "waste") return <WastePage />;
  if (name === "cost") return <CostPage place={place} />;
  if (name === "autoscaler") return <AutoscalerPage />;
  return <><Head title="Not found" /><Empty title="There is no such page">Use the navigation, or go to the <a href="/">overview</a>.</Empty></>;
}

function readTheme(): string {
  try { const stored = localStorage.getItem("kgwe-theme"); if (stored) return stored; } catch { /* private window */ }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

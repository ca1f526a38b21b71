/** Where the user is: the path and its query. Every state worth a link is in the address. */
import { useEffect, useState } from "preact/hooks";

export interface Place { path: string; query: URLSearchParams }
const read = (): Place => ({ path: location.pathname.replace(/\/+$/, "") || "/", query: new URLSearchParams(location.search) });

export function go(to: string, replace = false): void {
  if (to === location.pathname + location.search) return;
  if (replace) window.history.replaceState(null, "", to);
  else { window.history.pushState(null, "", to); window.scrollTo(0, 0); }
  window.dispatchEvent(new Event("kgwe-place"));
}

/** Changes parts of the query; empty texts are left out. */
export function setQuery(parts: Record<string, string>, replace = true): void {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(parts)) value ? query.set(name, value) : query.delete(name);
  const text = query.toString();
  go(location.pathname + (text ? `?${text}` : ""), replace);
}

export function usePlace(): Place {
  const [place, setPlace] = useState(read);
  useEffect(() => {
    const hear = () => setPlace(read());
    const follow = (event: MouseEvent) => {
      const link = (event.target as Element | null)?.closest?.("a");
      if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || link.target || link.hasAttribute("download")) return;
      if (link.origin !== location.origin || link.getAttribute("href")?.startsWith("#") || link.pathname.startsWith("/api/")) return;
      event.preventDefault();
      go(link.pathname + link.search);
    };
    window.addEventListener("popstate", hear);
    window.addEventListener("kgwe-place", hear);
    document.addEventListener("click", follow);
    return () => { window.removeEventListener("popstate", hear); window.removeEventListener("kgwe-place", hear); document.removeEventListener("click", follow); };
  }, []);
  return place;
}

import { useState } from "preact/hooks";
import { ApiError, call, type Session } from "../api";
import { Copy } from "../ui";

export function SignInPage({ problem, accept }: { problem: string; accept: (session: Session) => void }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState(problem);
  const submit = async (event: Event) => {
    event.preventDefault();
    try { accept(await call<Session>("/api/v1/session", { method: "POST", body: { token: token.trim() } })); }
    catch (caught) { setError(caught instanceof ApiError ? caught.message : String(caught)); }
  };
  return <main class="sign-in stack">
    <div class="brand"><img src="/icon.svg" alt="" />KGWE</div>
    <h1>Sign in</h1>
    <p class="notice" role="status">{error}</p>
    <section class="card stack"><h2>With your kubeconfig</h2><p class="muted">This command opens this page and signs you in as the user of your kubeconfig.</p><Copy text={`kgwe console open --url ${location.origin}`} /></section>
    <form class="card stack" onSubmit={submit}><h2>With a token</h2><p class="muted">Any token that the cluster accepts, such as one of a service account.</p>
      <label class="stack tight"><span class="muted small">Token</span><input class="field" type="password" autocomplete="off" value={token} onInput={(event) => setToken(event.currentTarget.value)} /></label>
      <div><button class="button primary" type="submit" disabled={!token.trim()}>Sign in</button></div></form>
    <p class="muted small">You see what your rights in Kubernetes let you list, and nothing else.</p>
  </main>;
}

/** A view imports its own style sheet; esbuild gathers them into app.css. */
declare module "*.css"

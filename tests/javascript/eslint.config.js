import js from "@eslint/js";
import globals from "globals";

const MARKUP = [
  { property: "innerHTML" }, { property: "outerHTML" }, { property: "insertAdjacentHTML" }, { property: "setHTMLUnsafe" },
  { object: "document", property: "write" },
];

export default [
  { ignores: ["**/node_modules/**"] },
  js.configs.recommended,
  {
    languageOptions: { ecmaVersion: 2024, sourceType: "module", globals: globals.browser },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      eqeqeq: ["error", "always", { null: "ignore" }],
      "no-var": "error",
      "prefer-const": ["error", { destructuring: "all" }],
      "no-shadow": "error",
      "no-unused-vars": ["error", { argsIgnorePattern: "^_" }],
      "no-implicit-globals": "error",
      "object-shorthand": "error",
      "prefer-arrow-callback": "error",
      "prefer-template": "error",
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      // Elements are made from texts only, so that no name in a model can become markup.
      "no-restricted-properties": ["error", ...MARKUP.map((place) => ({ ...place, message: "Use `make` or `draw`." }))],
      // Pages contain the scripts without indentation.
      "no-restricted-syntax": ["error", { selector: "TemplateElement[value.raw=/\\n/]", message: "Write each line as a string of its own." }],
      complexity: ["error", 20],
      "max-len": ["error", { code: 400 }],
    },
  },
];

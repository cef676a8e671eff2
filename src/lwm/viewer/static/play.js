/* Placeholder until the keyboard is taken. */
"use strict";

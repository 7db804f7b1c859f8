"""Parts of the catalogue of messages in English and French; `essaim.model.words` reads them."""

-- Whether a subscription leaves out the messages that change others ('none') or reads only them ('only'). Null: all.
alter table gapless.subscriptions add column changes text check (changes in ('none', 'only'));
do $$
declare
    granted name;
begin
    for granted in select r.role from gapless.role_grants r where r.kind = 'reader' loop
        execute format('grant select (changes) on gapless.subscriptions to %I', granted);
    end loop;
end $$;
